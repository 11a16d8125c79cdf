// The thread's place in a model.
#include "engine/scope.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>

using namespace polygrad;

TEST_CASE("open scopes are joined by dots; empty names are left out") {
  CHECK(Scope::path().empty());
  {
    const Scope root(""), blocks("blocks"), third("3");
    CHECK(Scope::path() == "blocks.3");
    {
      const Scope attention("attn");
      CHECK(Scope::path() == "blocks.3.attn");
      std::string elsewhere = "?";
      std::thread([&] { elsewhere = Scope::path(); }).join();
      CHECK(elsewhere.empty());
    }
    CHECK(Scope::path() == "blocks.3");
  }
  CHECK(Scope::path().empty());
}
