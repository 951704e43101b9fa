// Whether the machine was started since.
#ifndef BROKER_BASE_BOOT_ID_H_
#define BROKER_BASE_BOOT_ID_H_

#include <string>

namespace penstock {

// The kernel's, another after every start (random(4)); "": not known.
std::string BootId();

}  // namespace penstock
#endif  // BROKER_BASE_BOOT_ID_H_
