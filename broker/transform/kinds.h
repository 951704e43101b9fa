// All operations of `map`, in the order in which people are told of them. Those
// of single features have a member feature, and AddTo; those of whole rows have
// Open and Name. All have Declared.
#ifndef BROKER_TRANSFORM_KINDS_H_
#define BROKER_TRANSFORM_KINDS_H_

#include <variant>

#include "broker/transform/cast.h"
#include "broker/transform/decode_image.h"
#include "broker/transform/flip.h"
#include "broker/transform/normalize.h"
#include "broker/transform/plugin_function.h"
#include "broker/transform/python_function.h"
#include "broker/transform/resize.h"

namespace penstock {

using TransformSpec = std::variant<  //
    DecodeImageOp,                   //
    CropOp,                          //
    ResizeOp,                        //
    FlipOp,                          //
    NormalizeOp,                     //
    CastOp,                          //
    PythonOp,                        //
    PluginOp>;

}  // namespace penstock
#endif  // BROKER_TRANSFORM_KINDS_H_
