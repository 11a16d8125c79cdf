#include "engine/scope.h"

namespace polygrad {

namespace {

thread_local const Scope* current_scope = nullptr;

}  // namespace

Scope::Scope(std::string_view name) : parent_(current_scope), name_(name) { current_scope = this; }

Scope::~Scope() { current_scope = parent_; }

std::string Scope::path() {
  std::string result;
  for (const Scope* scope = current_scope; scope; scope = scope->parent_) {
    if (scope->name_.empty()) continue;
    result = result.empty() ? std::string(scope->name_) : std::string(scope->name_) + "." + result;
  }
  return result;
}

}  // namespace polygrad
