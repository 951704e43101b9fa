# What the extension module is, in a wheel and in python3-penstock: for CPython 3.9
# and every later one (abi3), with the client library in it. The target is _core.
find_package(Python 3.9 REQUIRED COMPONENTS Interpreter Development.Module)
if(Python_SOABI MATCHES "^cpython-[0-9]+t")
  message(FATAL_ERROR "penstock needs a CPython with the GIL; this one "
    "(${Python_EXECUTABLE}) is free-threaded")
endif()
target_compile_definitions(_core PRIVATE Py_LIMITED_API=0x03090000)
target_include_directories(_core PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../..)
target_link_libraries(_core PRIVATE penstock_client Python::Module)
# Nothing of the standard library's templates meets that of other modules.
target_link_options(_core PRIVATE
  -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/module.map)
set_target_properties(_core PROPERTIES PREFIX "" SUFFIX .abi3.so
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
