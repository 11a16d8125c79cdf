// CustomFunction: an operation of the application's own.
#include "engine/custom_function.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/error.h"
#include "engine/gradcheck.h"
#include "tests/engine/tiny_ops.h"

using namespace polygrad;
using doctest::Contains;

namespace {

Tensor cube(const Tensor& x) {
  return CustomFunction("cube", {x})
      .save("x", x)
      .backward([](const SavedTensors& saved, const Tensor& g, NeededMask) {
        return Gradients{tiny::zip(g, saved["x"], [](double gv, double v) { return 3 * gv * v * v; })};
      })
      .output([&] { return tiny::map(x, [](double v) { return v * v * v; }); });
}

// Its own output is all that the backward needs.
Tensor exponential(const Tensor& x) {
  return CustomFunction("exponential", {x})
      .backward([](const SavedTensors& saved, const Tensor& g, NeededMask) {
        return Gradients{tiny::product(g, saved["y"])};
      })
      .output([&] { return tiny::map(x, [](double v) { return std::exp(v); }); }, "y");
}

}  // namespace

TEST_CASE("values and gradients") {
  const Tensor x = tiny::leaf(2);
  const Tensor y = cube(x);
  CHECK(y.item<double>() == 8);
  y.backward();
  CHECK(x.grad().item<double>() == 12);
  CHECK(gradcheck([](const std::vector<Tensor>& in) { return cube(exponential(in[0])); },
                  {tiny::leaf({-1, 0.5, 0.9}, {3})}));
}

TEST_CASE("nothing inside the forward is recorded") {
  const Tensor x = tiny::leaf(2);
  const Tensor y = CustomFunction("outer", {x})
                       .backward([](const SavedTensors&, const Tensor& g, NeededMask) { return Gradients{g}; })
                       .output([&] {
                         CHECK_FALSE(grad_enabled());
                         return tiny::mul(x, x);
                       });
  y.backward();
  CHECK(x.grad().item<double>() == 1);  // as the rule says, though the truth would be 4
}

TEST_CASE("handing back an input leaves that input as it was") {
  const Tensor x = tiny::leaf(2);
  const Tensor y = CustomFunction("reverse", {x})
                       .backward([](const SavedTensors&, const Tensor& g, NeededMask) {
                         return Gradients{tiny::map(g, std::negate<>())};
                       })
                       .output([&] { return x; });
  CHECK(x.is_leaf());
  CHECK_FALSE(y.is_leaf());
  y.backward();
  CHECK(x.grad().item<double>() == -1);
}

TEST_CASE("errors") {
  Tensor x = tiny::leaf(2);
  CHECK_THROWS_WITH_AS(CustomFunction("norule", {x}).output([&] { return x.clone(); }),
                       Contains("[norule] no backward rule"), GradError);
  CHECK(CustomFunction("norule", {x.detach()}).output([&] { return x.detach().clone(); }).item<double>() == 2);
  CHECK_THROWS_WITH_AS(CustomFunction("nothing", {x.detach()}).output([] { return Tensor(); }),
                       Contains("[nothing] the forward returned an undefined tensor"), ValueError);
  const Tensor wrong_name =
      CustomFunction("typo", {x})
          .save("x", x)
          .save("mask", x)
          .backward([](const SavedTensors& saved, const Tensor&, NeededMask) { return Gradients{saved["y"]}; })
          .output([&] { return x.clone(); });
  CHECK_THROWS_WITH_AS(wrong_name.backward(), Contains("no tensor was saved as 'y'; expected one of: x, mask"),
                       InternalError);
  const Tensor y = cube(x);
  {
    const NoGradGuard no_grad;
    x.fill_(5);
  }
  CHECK_THROWS_WITH_AS(y.backward(), Contains("[cube] the saved argument 'x'"), GradError);
}

TEST_CASE("an absent optional input") {
  const Tensor x = tiny::leaf(3);
  const Tensor y = CustomFunction("maybe", {x, Tensor()})
                       .save("bias", Tensor())
                       .backward([](const SavedTensors& saved, const Tensor& g, NeededMask needed) {
                         CHECK_FALSE(saved["bias"].defined());
                         CHECK(needed[0]);
                         CHECK_FALSE(needed[1]);
                         return Gradients{g, Tensor()};
                       })
                       .output([&] { return x.clone(); });
  y.backward();
  CHECK(x.grad().item<double>() == 1);
}
