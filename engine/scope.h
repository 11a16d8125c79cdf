// Scope: the thread's current place in a model ("blocks.3.attn"), for error messages and the anomaly mode.
//
// A module's forward opens one; it costs two pointer writes. The path is put together only when somebody asks.
#pragma once

#include <string>
#include <string_view>

namespace polygrad {

class Scope {
 public:
  explicit Scope(std::string_view name);  // the name must outlive the scope; an empty name is left out of the path
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // The names of all open scopes of this thread, joined by dots; "" where there is none.
  static std::string path();

 private:
  const Scope* parent_;
  std::string_view name_;
};

}  // namespace polygrad
