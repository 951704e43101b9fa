// Identifies the current boot of the machine.
#ifndef BROKER_BASE_BOOT_ID_H_
#define BROKER_BASE_BOOT_ID_H_

#include <string>

namespace penstock {

// The kernel's boot ID, new after every boot (random(4)); "": unknown.
std::string BootId();

}  // namespace penstock
#endif  // BROKER_BASE_BOOT_ID_H_
