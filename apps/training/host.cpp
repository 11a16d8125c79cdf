#include "apps/training/host.h"

#include <unistd.h>

#include <chrono>
#include <ctime>
#include <fstream>

#include "apps/training/config_schema.h"
#include "engine/format.h"

namespace polygrad {

namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace

HostInfo host_info() {
  char name[256] = {};
  HostInfo host;
  if (::gethostname(name, sizeof name - 1) == 0) host.name = name;
  host.cpu = cpu_name();
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && size > 0) host.memory_bytes = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size);
  return host;
}

std::string compiler_text() {
#if defined(__clang__)
  return format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string utc_time() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  char text[32] = {};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string changed_settings(const Config& config) {
  const Config defaults;
  std::string text;
  for (const ConfigKey& key : config_keys()) {
    const JsonValue& value = config.value(key.name);
    if (value == defaults.value(key.name)) continue;
    const std::string shown = value.kind() == JsonValue::Kind::text ? value.as_text() : value.dump();
    text += format("{}{}={}", text.empty() ? "" : ", ", key.name, shown);
  }
  return text;
}

}  // namespace polygrad
