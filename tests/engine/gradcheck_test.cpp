// gradcheck must find what is wrong, and pass what is right.
#include "engine/gradcheck.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/error.h"
#include "tests/engine/tiny_ops.h"

using namespace polygrad;
using doctest::Contains;

namespace {

using Inputs = std::vector<Tensor>;

// x^2, whose rule answers 2 x g times `factor`, plus `shift`.
Tensor square(const Tensor& x, double factor = 1, double shift = 0) {
  return record(
      "square", tiny::product(x, x), {x}, [x = SavedTensor(x, "x"), factor, shift](const Tensor& g, NeededMask) {
        return Gradients{tiny::zip(g, x.get(), [=](double gv, double v) { return 2 * gv * v * factor + shift; })};
      });
}

Tensor point() { return tiny::leaf({0.5, -1.25, 2}, {3}); }

}  // namespace

TEST_CASE("a right gradient passes") {
  const GradcheckResult result = gradcheck([](const Inputs& in) { return square(in[0]); }, {point()});
  CHECK(result);
  CHECK(result.message.empty());
  CHECK(result.max_error < 1e-8);
  CHECK(gradcheck([](const Inputs& in) { return tiny::sum(tiny::mul(in[0], tiny::add(in[0], in[1]))); },
                  {point(), tiny::leaf({3, 4, 5}, {3})}));
}

TEST_CASE("an error of a tenth of a percent fails, with the place named") {
  const GradcheckResult result = gradcheck([](const Inputs& in) { return square(in[0], 1.001); }, {point()});
  CHECK_FALSE(result);
  CHECK(result.max_error == doctest::Approx(0.001).epsilon(0.01));
  CHECK(result.message.find("input 0 (3), element [2]") != std::string::npos);
  CHECK(result.message.find("central differences") != std::string::npos);
}

TEST_CASE("one wrong element of the second input is found") {
  const GradcheckResult result = gradcheck(
      [](const Inputs& in) {
        return record("pick", tiny::product(in[0], in[1]), {in[0], in[1]},
                      [a = SavedTensor(in[0], "a"), b = SavedTensor(in[1], "b")](const Tensor& g, NeededMask) {
                        Tensor wrong = tiny::product(g, a.get());
                        wrong.data<double>()[2] += 1e-4;
                        return Gradients{tiny::product(g, b.get()), wrong};
                      });
      },
      {tiny::leaf({1, 2, 3, 4}, {2, 2}), tiny::leaf({5, 6, 7, 8}, {2, 2})});
  CHECK_FALSE(result);
  CHECK(result.message.find("input 1 (2, 2), element [1, 0]") != std::string::npos);
}

TEST_CASE("a gradient that is zero everywhere proves nothing") {
  const auto constant = [](const Inputs& in) { return tiny::scale(in[0], 0); };
  const GradcheckResult result = gradcheck(constant, {point()});
  CHECK_FALSE(result);
  CHECK(result.message.find("require_nonzero") != std::string::npos);
  CHECK(gradcheck(constant, {point()}, {.require_nonzero = false}));
  // A missing gradient is found in any case.
  CHECK_FALSE(gradcheck(
      [](const Inputs& in) {
        return record("lost", tiny::product(in[0], in[0]), {in[0]},
                      [](const Tensor&, NeededMask) { return Gradients{Tensor()}; });
      },
      {point()}, {.require_nonzero = false}));
  CHECK_FALSE(gradcheck([](const Inputs& in) { return square(in[0]); }, {tiny::leaf({}, {0})}));
}

TEST_CASE("NaN fails, wherever it comes from") {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const GradcheckResult analytic = gradcheck([](const Inputs& in) { return square(in[0], 1, kNaN); }, {point()});
  CHECK_FALSE(analytic);
  CHECK(analytic.message.find("nan") != std::string::npos);
  CHECK_FALSE(gradcheck(
      [](const Inputs& in) {
        return record("root", tiny::map(in[0], [](double v) { return std::sqrt(v); }), {in[0]},
                      [](const Tensor& g, NeededMask) { return Gradients{g}; });
      },
      {tiny::leaf({0.0, 1.0}, {2})}));  // sqrt(-h)
}

TEST_CASE("an output that does not depend on the inputs fails") {
  const GradcheckResult result = gradcheck([](const Inputs& in) { return in[0].detach().clone(); }, {point()});
  CHECK_FALSE(result);
  CHECK(result.message.find("depends on no input") != std::string::npos);
}

TEST_CASE("a function that is not deterministic fails") {
  int calls = 0;
  const auto drifting = [&](const Inputs& in) { return tiny::scale(in[0], 1 + 1e-3 * ++calls); };
  CHECK(gradcheck(drifting, {point()}).message.find("not deterministic") != std::string::npos);
}

TEST_CASE("a rule that writes into what it was given fails") {
  const auto writes = [](const Inputs& in) {
    return record("greedy", tiny::map(in[0], [](double v) { return v; }), {in[0]}, [](const Tensor& g, NeededMask) {
      const Tensor result = g.clone();
      Tensor(g).fill_(0);
      return Gradients{result};
    });
  };
  CHECK(gradcheck(writes, {point()}).message.find("wrote into the gradient") != std::string::npos);
  const auto spoils = [](const Inputs& in) {
    return record("spoiler", tiny::map(in[0], [](double v) { return v; }), {in[0]},
                  [x = in[0]](const Tensor& g, NeededMask) {
                    x.detach().fill_(3);
                    return Gradients{g};
                  });
  };
  CHECK(gradcheck(spoils, {point()}).message.find("input 0: it was changed") != std::string::npos);
}

TEST_CASE("layouts: f sees the strides it was given, and the caller's tensors stay as they are") {
  const Tensor memory = Tensor::from_vector(std::vector<double>{1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor transposed = make_view(memory, {3, 2}, {1, 3}, 0), gaps = make_view(memory, {2, 2}, {3, 2}, 0),
         backwards = make_view(memory, {3}, {-1}, 2), expanded = make_view(memory, {2, 3}, {0, 1}, 3);
  for (Tensor* input : {&transposed, &gaps, &backwards, &expanded}) {
    input->set_requires_grad(true);
    const Shape strides = input->strides();
    CAPTURE(to_string(strides));
    const auto f = [&](const Inputs& in) {
      CHECK(in[0].strides() == strides);
      CHECK(in[0].to_vector<double>().size() == static_cast<std::size_t>(in[0].numel()));
      return square(in[0]);
    };
    CHECK(gradcheck(f, {*input}).message == "");
    CHECK_FALSE(gradcheck([](const Inputs& in) { return square(in[0], 1.001); }, {*input}));
    CHECK_FALSE(input->grad().defined());
  }
  CHECK(memory.to_vector<double>() == std::vector<double>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("other inputs pass through untouched") {
  const Tensor ids = Tensor::from_vector(std::vector<std::int64_t>{1, 2, 3});
  CHECK(gradcheck(
      [&](const Inputs& in) {
        CHECK(in[1].is_same(ids));
        CHECK_FALSE(in[2].defined());
        return square(in[0]);
      },
      {point(), ids, Tensor()}));
}

TEST_CASE("misuse is an exception") {
  const auto f = [](const Inputs& in) { return tiny::scale(in[0], 2); };
  CHECK_THROWS_WITH_AS(gradcheck(f, {Tensor::from_vector(std::vector<float>{1}, {1}, true)}),
                       Contains("input 0 is f32 (1)"), DTypeError);
  CHECK_THROWS_WITH_AS(gradcheck(f, {point().detach()}), Contains("no input requires a gradient"), ValueError);
  CHECK_THROWS_AS(gradcheck([](const Inputs& in) { return in[0].to(DType::f32); }, {point()}), DTypeError);
}
