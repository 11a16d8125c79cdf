// The log sink: where the library's few messages go. Silent unless the application sets one.
#pragma once

#include <functional>
#include <string_view>

namespace polygrad {

enum class LogLevel { debug, info, warning, error };
using LogSink = std::function<void(LogLevel, std::string_view message)>;

// Replaces the sink for all threads; an empty function silences. The sink may be called from several threads at once.
void set_log_sink(LogSink sink);
// For the library's own use.
void log_message(LogLevel level, std::string_view message);

}  // namespace polygrad
