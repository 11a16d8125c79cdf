// The graph: recording, saved tensors, accumulation, the walk and its destruction, threads.
#include "engine/autograd.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <thread>

#include "engine/error.h"
#include "engine/factory.h"
#include "engine/scope.h"
#include "engine/testing.h"
#include "tests/engine/tiny_ops.h"
#include "tests/support/isolation.h"

using namespace polygrad;
using doctest::Contains;

TEST_CASE("a value used several times collects all its gradients") {
  SUBCASE("x * x * x at 2") {
    const Tensor x = tiny::leaf(2);
    tiny::mul(tiny::mul(x, x), x).backward();
    CHECK(x.grad().item<double>() == 12);
  }
  SUBCASE("x + x") {
    const Tensor x = tiny::leaf(3);
    tiny::add(x, x).backward();
    CHECK(x.grad().item<double>() == 2);
  }
  SUBCASE("a diamond: (2x) * (3x + x)") {
    const Tensor x = tiny::leaf(5);
    tiny::mul(tiny::scale(x, 2), tiny::add(tiny::scale(x, 3), x)).backward();
    CHECK(x.grad().item<double>() == 2 * 8 * 5);
  }
  SUBCASE("a view used twice") {
    const Tensor x = tiny::leaf({1, 2, 3, 4, 5, 6}, {2, 3});
    const Tensor t = tiny::transpose(x);
    tiny::sum(tiny::mul(t, t)).backward();
    CHECK(x.grad().to_vector<double>() == std::vector<double>{2, 4, 6, 8, 10, 12});
    CHECK(x.grad().shape() == x.shape());
  }
  SUBCASE("one leaf in two graphs") {
    Tensor x = tiny::leaf(3);
    const Tensor first = tiny::mul(x, x), second = tiny::scale(x, 10);
    first.backward();
    second.backward();
    CHECK(x.grad().item<double>() == 6 + 10);
    x.zero_grad();
    CHECK_FALSE(x.grad().defined());
    tiny::scale(x, 4).backward();
    CHECK(x.grad().item<double>() == 4);
  }
}

TEST_CASE("200,000 operations in a row fit a stack of 512 KiB, in the walk and in the destruction") {
  constexpr int kLength = 200'000;
  const Tensor x = tiny::leaf(1);
  testing::run_with_stack(512 * 1024, [&] {
    Tensor walked = x;
    for (int i = 0; i < kLength; ++i) walked = tiny::add(walked, x);
    walked.backward();
    Tensor unused = x;
    for (int i = 0; i < kLength; ++i) unused = tiny::add(unused, x);
  });
  CHECK(x.grad().item<double>() == kLength + 1);
}

TEST_CASE("a gradient sent to two inputs is not shared by what collects it") {
  Tensor a = tiny::leaf({1, 2}, {2}), b = tiny::leaf({3, 4}, {2});
  const Tensor seed = Tensor::from_vector(std::vector<double>{10, 20});
  tiny::add(a, b).backward(seed);
  Tensor grad_a = a.grad();
  grad_a.fill_(7);
  CHECK(b.grad().to_vector<double>() == std::vector<double>{10, 20});
  CHECK(seed.to_vector<double>() == std::vector<double>{10, 20});

  SUBCASE("and adding a second one changes neither the other leaf nor the caller's tensor") {
    tiny::scale(b, 1).backward(seed);
    CHECK(b.grad().to_vector<double>() == std::vector<double>{20, 40});
    CHECK(a.grad().to_vector<double>() == std::vector<double>{7, 7});
    CHECK(seed.to_vector<double>() == std::vector<double>{10, 20});
  }
  SUBCASE("nor a gradient that somebody holds") {
    const Tensor held = b.grad();
    tiny::scale(b, 1).backward(seed);
    CHECK(held.to_vector<double>() == std::vector<double>{10, 20});
  }
  SUBCASE("nor what was given to set_grad") {
    b.set_grad(seed);
    tiny::scale(b, 1).backward(seed);
    CHECK(b.grad().to_vector<double>() == std::vector<double>{20, 40});
    CHECK(seed.to_vector<double>() == std::vector<double>{10, 20});
  }
}

TEST_CASE("an expanded gradient becomes a whole one in the leaf") {
  const Tensor x = tiny::leaf({1, 2, 3}, {3});
  tiny::sum(x).backward();  // the rule returns one place three times
  CHECK(x.grad().is_contiguous());
  tiny::sum(x).backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>{2, 2, 2});
}

TEST_CASE("a saved tensor that was changed afterwards is found, by op and argument") {
  Tensor x = tiny::leaf({1, 2}, {2}), y = tiny::leaf({3, 4}, {2});
  const Tensor product = tiny::mul(x, y);
  SUBCASE("through a view") {
    const NoGradGuard no_grad;
    make_view(y, {1}, {1}, 1).fill_(9);
  }
  SUBCASE("through a detached handle") { y.detach().fill_(9); }
  SUBCASE("directly") {
    const NoGradGuard no_grad;
    y.fill_(9);
  }
  CHECK_THROWS_WITH_AS(tiny::sum(product).backward(),
                       Contains("[mul] the saved argument 'y', f64 (2) on cpu, was changed"), GradError);
  CHECK_FALSE(y.grad().defined());
}

TEST_CASE("a change of another part of the program is no change: two families on one storage never mix") {
  Tensor x = tiny::leaf({1, 2}, {2}), other = tiny::leaf({1, 2}, {2});
  const Tensor product = tiny::mul(x, x);
  {
    const NoGradGuard no_grad;
    other.fill_(5);
  }
  tiny::sum(product).backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>{2, 4});
}

TEST_CASE("an op may save its own output") {
  const Tensor x = tiny::leaf(1);
  const Tensor raw = tiny::map(x, [](double v) { return std::exp(v); });
  const Tensor y = record("exp", raw, {x}, [saved = SavedTensor(raw, "output")](const Tensor& g, NeededMask) {
    return Gradients{tiny::product(g, saved.get())};
  });
  y.backward();
  CHECK(x.grad().item<double>() == doctest::Approx(std::exp(1.0)).epsilon(1e-15));
}

TEST_CASE("a second walk over a released graph is an error with advice") {
  const Tensor x = tiny::leaf(3);
  const Tensor y = tiny::mul(x, x);
  SUBCASE("not retained") {
    y.backward();
    CHECK_THROWS_WITH_AS(y.backward(), Contains("retain_graph"), GradError);
    CHECK(x.grad().item<double>() == 6);
  }
  SUBCASE("retained: exactly twice, on the leaf only") {
    y.backward({}, true);
    y.backward();
    CHECK(x.grad().item<double>() == 12);
  }
  SUBCASE("through a part shared with another graph") {
    const Tensor loss = tiny::scale(y, 2), other = tiny::scale(y, 5);
    loss.backward();
    CHECK_THROWS_WITH_AS(other.backward(), Contains("[mul]"), GradError);
    CHECK(x.grad().item<double>() == 12);
  }
}

TEST_CASE("the walk gives back what it has consumed") {
  bool freed = false;
  std::vector<double> memory{1, 2, 3};
  Tensor y;
  {
    const Tensor wrapped = Tensor::from_blob(memory.data(), {3}, DType::f64, [&](void*) { freed = true; });
    y = tiny::sum(tiny::mul(wrapped, tiny::leaf({4, 5, 6}, {3})));
  }
  CHECK_FALSE(freed);
  SUBCASE("not retained") {
    y.backward();
    CHECK(freed);
  }
  SUBCASE("retained") {
    y.backward({}, true);
    CHECK_FALSE(freed);
  }
  SUBCASE("never walked") { y = Tensor(); }
  y = Tensor();
  CHECK(freed);
}

TEST_CASE("hooks run after the accumulation, in the walking thread") {
  Tensor x = tiny::leaf(2);
  std::vector<double> seen;
  std::thread::id thread;
  x.set_post_accumulate_hook([&](Tensor& leaf) {
    seen.push_back(leaf.grad().item<double>());
    thread = std::this_thread::get_id();
    CHECK_FALSE(grad_enabled());
  });
  tiny::mul(tiny::scale(x, 3), tiny::leaf(1)).backward();
  tiny::scale(x, 4).backward();
  CHECK(seen == std::vector<double>{3, 7});
  CHECK(thread == std::this_thread::get_id());

  SUBCASE("once a walk, when the gradient is whole") {
    Tensor leaf = tiny::leaf(3);
    std::vector<double> whole;
    leaf.set_post_accumulate_hook([&](Tensor& changed) { whole.push_back(changed.grad().item<double>()); });
    tiny::add(tiny::add(leaf, leaf), tiny::mul(leaf, leaf)).backward();
    CHECK(whole == std::vector<double>{8});
  }
  SUBCASE("a hook may step and forget, as an optimizer does") {
    x.zero_grad();
    x.set_post_accumulate_hook([](Tensor& leaf) {
      leaf.copy_(tiny::zip(leaf, leaf.grad(), [](double w, double g) { return w - 0.5 * g; }));
      leaf.zero_grad();
    });
    tiny::scale(x, 2).backward();
    CHECK(x.item<double>() == 1);
    CHECK_FALSE(x.grad().defined());
  }
  SUBCASE("a hook may replace itself, and take another leaf's away") {
    Tensor first = tiny::leaf(1), second = tiny::leaf(2);
    std::vector<std::string> calls;
    // Long enough to live on the heap: the text must outlast the hook that holds it.
    const auto once = [&calls](Tensor* other, const std::string& text) {
      return [&calls, other, text](Tensor& leaf) {
        leaf.set_post_accumulate_hook({});
        if (other != nullptr) other->set_post_accumulate_hook({});
        calls.push_back(text);
      };
    };
    const std::string a = "the hook of the first leaf, called once", b = "the hook of a leaf that is its own output";
    first.set_post_accumulate_hook(once(&second, a));
    second.set_post_accumulate_hook(once(&first, a));
    for (int i = 0; i < 2; ++i) tiny::mul(first, second).backward();
    CHECK(calls == std::vector<std::string>{a});
    first.set_post_accumulate_hook(once(nullptr, b));
    for (int i = 0; i < 2; ++i) first.backward();
    CHECK(calls == std::vector<std::string>{a, b});
  }
  SUBCASE("grad() runs none") {
    seen.clear();
    grad(tiny::scale(x, 2), {x});
    CHECK(seen.empty());
  }
}

TEST_CASE("a pinned buffer receives the gradients") {
  Tensor x = tiny::leaf({1, 2}, {2});
  const Tensor buffer = Tensor::from_vector(std::vector<double>{100, 200});
  x.pin_grad(buffer);
  tiny::sum(tiny::scale(x, 3)).backward();
  tiny::sum(tiny::scale(x, 4)).backward();
  CHECK(buffer.to_vector<double>() == std::vector<double>{107, 207});
  CHECK(x.grad().ref().data == buffer.ref().data);
  x.zero_grad();
  CHECK(buffer.to_vector<double>() == std::vector<double>{0, 0});
  x.pin_grad({});
  CHECK_FALSE(x.grad().defined());
  tiny::sum(x).backward();
  CHECK(buffer.to_vector<double>() == std::vector<double>{0, 0});
  CHECK_THROWS_AS(x.pin_grad(Tensor::from_vector(std::vector<double>{1, 2, 3})), ShapeError);
  CHECK_THROWS_AS(x.pin_grad(Tensor::from_vector(std::vector<float>{1, 2})), ShapeError);
}

TEST_CASE("the anomaly mode names op and module") {
  const AnomalyGuard anomaly;
  const Scope outer("blocks.3"), inner("attn");
  const Tensor x = tiny::leaf(0);
  SUBCASE("in the forward") {
    CHECK_THROWS_WITH_AS(tiny::scale(x, std::numeric_limits<double>::infinity()),
                         Contains("[scale] the result has a NaN or infinity in module blocks.3.attn"), NumericError);
  }
  SUBCASE("in the backward, where the module is long left") {
    Tensor root;
    {
      const Scope deepest("sqrt");
      root = record("sqrt", tiny::map(x, [](double v) { return std::sqrt(v); }), {x}, [](const Tensor& g, NeededMask) {
        return Gradients{tiny::map(g, [](double v) { return v / 0.0; })};
      });
    }
    CHECK_THROWS_WITH_AS(root.backward(),
                         Contains("[sqrt] the gradient of input 0 has a NaN or infinity in module "
                                  "blocks.3.attn.sqrt"),
                         NumericError);
  }
  SUBCASE("but not a view: it computes nothing, and may be of a buffer that is still to be filled") {
    const Tensor hole = tiny::leaf(std::numeric_limits<double>::quiet_NaN());
    CHECK_NOTHROW(record("view", hole.detach(), {hole}, [](const Tensor& g, NeededMask) { return Gradients{g}; }));
  }
  CHECK(Scope::path() == "blocks.3.attn");
}

TEST_CASE("without the anomaly mode NaN passes") {
  const Tensor x = tiny::leaf(1);
  tiny::scale(x, std::numeric_limits<double>::quiet_NaN()).backward();
  CHECK(std::isnan(x.grad().item<double>()));
}

TEST_CASE("NoGradGuard is the thread's own, and nests") {
  const Tensor x = tiny::leaf(1);
  const NoGradGuard outer;
  {
    const NoGradGuard inner;
    CHECK_FALSE(grad_enabled());
  }
  CHECK_FALSE(grad_enabled());
  CHECK_FALSE(tiny::scale(x, 2).requires_grad());
  bool recorded = false;
  std::thread([&] { recorded = tiny::scale(x, 2).requires_grad(); }).join();
  CHECK(recorded);
}

namespace {

// Thirty steps of a little nonlinear model; the weights at the end.
std::vector<double> train(int width, double start) {
  std::vector<double> values(static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = start + 0.01 * static_cast<double>(i);
  Tensor w = tiny::leaf(values, {width});
  for (int step = 0; step < 30; ++step) {
    const Tensor y = tiny::mul(tiny::add(w, tiny::scale(w, 0.3)), tiny::mul(w, w));
    tiny::sum(tiny::mul(y, y)).backward();
    const NoGradGuard no_grad;
    w.copy_(tiny::zip(w, w.grad(), [](double a, double g) { return a - 1e-3 * g; }));
    w.zero_grad();
  }
  return w.to_vector<double>();
}

}  // namespace

TEST_CASE("two models in two threads end with the bits of one after the other") {
  const std::vector<double> first = train(64, 0.5), second = train(100, -0.7);
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<double> one, two;
    std::thread a([&] { one = train(64, 0.5); }), b([&] { two = train(100, -0.7); });
    a.join();
    b.join();
    CHECK(one == first);
    CHECK(two == second);
  }
}

TEST_CASE("no gradient is cut silently") {
  const Tensor x = tiny::leaf(1);
  CHECK_THROWS_WITH_AS(no_backward("round", {x}), Contains("[round] has no backward"), GradError);
  const Tensor constant = Tensor::from_vector(std::vector<double>{1});
  CHECK_NOTHROW(no_backward("round", {constant, Tensor()}));
  const NoGradGuard no_grad;
  CHECK_NOTHROW(no_backward("round", {x}));
}

TEST_CASE("a result that is not differentiable by its nature says so and stays outside the graph") {
  const Tensor x = tiny::leaf(1.7);
  const Tensor y = non_differentiable("floor", tiny::map(x, [](double v) { return std::floor(v); }));
  CHECK_FALSE(y.requires_grad());
}

TEST_CASE("grad() leaves the leaves alone") {
  const Tensor x = tiny::leaf(3), unused = tiny::leaf({1, 2}, {2});
  const Tensor square = tiny::mul(x, x);
  const Tensor loss = tiny::scale(square, 5);
  const std::vector<Tensor> gradients = grad(loss, {x, unused, square});
  CHECK(gradients[0].item<double>() == 30);
  CHECK(gradients[1].to_vector<double>() == std::vector<double>{0, 0});
  CHECK(gradients[2].item<double>() == 5);
  CHECK_FALSE(x.grad().defined());
  CHECK_THROWS_WITH_AS(grad(loss, {Tensor::from_vector(std::vector<double>{1})}), Contains("input 0"), GradError);
}

TEST_CASE("a rule computes only what is needed, and may leave a zero out") {
  const Tensor x = tiny::leaf(2), constant = Tensor::from_vector(std::vector<double>{3}, {});
  std::uint64_t asked = 0;
  const auto spy = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    return record("spy", tiny::product(a, b), {a, b, c}, [&asked](const Tensor& g, NeededMask needed) {
      for (std::size_t i = 0; i < 3; ++i) asked |= static_cast<std::uint64_t>(needed[i]) << i;
      return Gradients{g, Tensor(), Tensor()};
    });
  };
  spy(x, constant, x).backward();
  CHECK(asked == 0b101);
  CHECK(x.grad().item<double>() == 1);
  asked = 0;
  const Tensor y = tiny::leaf(1);
  grad(spy(x, constant, y), {y});
  CHECK(asked == 0b100);
}

TEST_CASE("an undefined gradient is zero all the way down") {
  const Tensor x = tiny::leaf(2);
  bool reached = false;
  const Tensor below = record("below", tiny::map(x, [](double v) { return v; }), {x}, [&](const Tensor& g, NeededMask) {
    reached = true;
    return Gradients{g};
  });
  record("cut", tiny::map(below, [](double v) { return v; }), {below}, [](const Tensor&, NeededMask) {
    return Gradients{Tensor()};
  }).backward();
  CHECK_FALSE(reached);
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("a wrong rule is named") {
  const Tensor x = tiny::leaf({1, 2}, {2});
  const auto op = [&](const BackwardRule& rule) {
    return tiny::sum(record("wrong", tiny::map(x, std::negate<>()), {x}, rule));
  };
  CHECK_THROWS_WITH_AS(op([](const Tensor&, NeededMask) { return Gradients{}; }).backward(),
                       Contains("[wrong] the backward rule returned 0 gradients for 1 inputs"), GradError);
  CHECK_THROWS_WITH_AS(
      op([](const Tensor&, NeededMask) { return Gradients{zeros({3}, {.dtype = DType::f64})}; }).backward(),
      Contains("[wrong] the backward rule returned f64 (3) as gradient of input 0; expected f64 (2)"), GradError);
  CHECK_THROWS_WITH_AS(op([](const Tensor&, NeededMask) { return Gradients{zeros({2})}; }).backward(),
                       Contains("returned f32 (2)"), GradError);
}

TEST_CASE("a rule that throws leaves a process that goes on") {
  const Tensor x = tiny::leaf(2);
  const Tensor y = record("broken", tiny::map(x, std::negate<>()), {x},
                          [](const Tensor&, NeededMask) -> Gradients { throw NumericError("[broken] on purpose"); });
  CHECK_THROWS_WITH_AS(tiny::scale(y, 2).backward(), "[broken] on purpose", NumericError);
  CHECK(grad_enabled());
  tiny::mul(x, x).backward();
  CHECK(x.grad().item<double>() == 4);
}

TEST_CASE("backward needs a number, or a gradient of the output's shape") {
  const Tensor x = tiny::leaf({1, 2}, {2});
  CHECK_THROWS_WITH_AS(tiny::scale(x, 2).backward(), Contains("shape (2)"), GradError);
  CHECK_THROWS_AS(tiny::scale(x, 2).backward(Tensor::from_vector(std::vector<double>{1})), ShapeError);
  CHECK_THROWS_AS(tiny::scale(x, 2).backward(Tensor::from_vector(std::vector<float>{1, 2})), ShapeError);
  CHECK_THROWS_WITH_AS(x.detach().backward(Tensor::from_vector(std::vector<double>{1, 1})),
                       Contains("does not require a gradient"), GradError);
}

TEST_CASE("the engine's copies pass gradients on") {
  const Tensor x = tiny::leaf({1, 2, 3, 4, 5, 6}, {2, 3});
  SUBCASE("clone") { tiny::sum(tiny::scale(x.clone(), 2)).backward(); }
  SUBCASE("contiguous") { tiny::sum(tiny::scale(tiny::transpose(x).contiguous(), 2)).backward(); }
  SUBCASE("to, there and back") { tiny::sum(tiny::scale(x.to(DType::f32).to(DType::f64), 2)).backward(); }
  CHECK(x.grad().to_vector<double>() == std::vector<double>(6, 2.0));
  CHECK(x.grad().dtype() == DType::f64);
  CHECK_FALSE(x.to(DType::i32).requires_grad());
  CHECK_FALSE(x.detach().requires_grad());
}

TEST_CASE("leaves") {
  Tensor x = tiny::leaf(1);
  CHECK(x.is_leaf());
  Tensor y = tiny::scale(x, 2);
  CHECK_FALSE(y.is_leaf());
  CHECK_THROWS_AS(y.set_requires_grad(false), GradError);
  CHECK_THROWS_AS(y.set_post_accumulate_hook([](Tensor&) {}), GradError);
  Tensor ids = Tensor::from_vector(std::vector<std::int64_t>{1});
  CHECK_THROWS_WITH_AS(ids.set_requires_grad(true), Contains("i64"), DTypeError);
  x.backward();  // a leaf's gradient by itself
  CHECK(x.grad().item<double>() == 1);
}

TEST_CASE("deliberate faults reach exactly the op that is named") {
  using testing::MutationGuard;
  using testing::MutationTarget;
  const Tensor x = tiny::leaf(3);
  {
    const MutationGuard fault("mul", MutationTarget::gradient, 2);
    const Tensor y = tiny::scale(tiny::mul(x, x), 1);
    CHECK(y.item<double>() == 9);
    CHECK(grad(y, {x})[0].item<double>() == 12);
    CHECK(fault.applied() > 0);
  }
  {
    const MutationGuard fault("mul", MutationTarget::value, 2);
    const Tensor y = tiny::mul(x, x);
    CHECK(y.item<double>() == 18);
    CHECK(grad(y, {x})[0].item<double>() == 6);
    CHECK(fault.applied() == 1);
  }
  CHECK(tiny::mul(x, x).item<double>() == 9);
}
