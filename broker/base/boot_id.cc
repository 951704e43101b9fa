#include "broker/base/boot_id.h"

#include <fstream>

namespace penstock {

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace penstock
