// Names, choices and every wrong argument of attention: the type thrown and what its text says.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "ops/attention.h"

using namespace polygrad;

namespace {

template <class E>
std::string text_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing thrown";
}

#define CHECK_TEXT(E, expression, ...)                                \
  do {                                                                \
    const std::string text = text_of<E>([&] { (void)(expression); }); \
    for (const char* part : {__VA_ARGS__}) {                          \
      CAPTURE(text);                                                  \
      CHECK(text.find(part) != std::string::npos);                    \
    }                                                                 \
  } while (false)

Tensor f32(const Shape& shape) { return zeros(shape); }
Tensor of(const Shape& shape, DType dtype) { return zeros(shape, {.dtype = dtype}); }

}  // namespace

TEST_CASE("names of activations") {
  for (const Activation phi : all_activations()) CHECK(parse_activation(to_string(phi)) == phi);
  CHECK(all_activations().front().is_softmax());
  CHECK(parse_activation("x1") == Activation::power(1));
  CHECK(to_string(parse_activation("x1")) == "x");
  CHECK(to_string(parse_activation("x^1")) == "x");
  CHECK(to_string(parse_activation("x^2")) == "x2");
  CHECK(parse_activation("x^3") == Activation::power(3));
  CHECK(to_string(parse_activation("x^9")) == "x^9");
  for (int p = 1; p <= 9; ++p) CHECK(Activation::power(p).power() == p);
  CHECK(parse_activation("gelu").power() == 0);
  CHECK(Activation::softmax().power() == 0);
  for (const char* wrong : {"", "x^0", "x^10", "x^", "x^-1", "swish", "Softmax", "x33"}) {
    CHECK_TEXT(ConfigError, parse_activation(wrong), "[attention.phi]", "unknown activation", "softmax", "x2",
               "x^p (p = 1 ... 9)", "relu", "elu", "gelu", "tanh", "exp", "exp_neg");
  }
  CHECK(activation_names().starts_with("softmax, x, x2, x3, x^p (p = 1 ... 9), relu, elu, gelu, tanh, exp, exp_neg"));
  CHECK_TEXT(ValueError, Activation::power(10), "x^10", "1 <= p <= 9");
  CHECK_TEXT(ValueError, Activation::power(0), "x^0");
}

TEST_CASE("names and choice of paths") {
  for (const AttentionPath path :
       {AttentionPath::automatic, AttentionPath::tiled, AttentionPath::linear, AttentionPath::materialised}) {
    CHECK(parse_attention_path(to_string(path)) == path);
  }
  CHECK_TEXT(ConfigError, parse_attention_path("flash"), "[attention.path]", "flash",
             "auto, tiled, linear, materialised");

  AttentionParams params;
  params.phi = Activation::power(1);
  const auto choose = [&](std::int64_t n, std::int64_t d, bool bias, bool regions) {
    return choose_attention_path(params, n, n, d, bias, regions);
  };
  CHECK(choose(257, 64, false, false).path == AttentionPath::linear);
  CHECK(choose(64, 64, false, false).path == AttentionPath::tiled);  // equal counts
  CHECK(choose(65, 64, false, false).path == AttentionPath::linear);
  CHECK(choose(49, 64, false, false).path == AttentionPath::tiled);
  CHECK(choose(4096, 32, false, false).why == "8.39 M multiply-adds a head instead of 1.07e+03 M");
  CHECK(choose_attention_path(params, 1, 197, 48, false, false).path == AttentionPath::tiled);  // class attention
  CHECK(choose(257, 64, true, false).path == AttentionPath::tiled);
  CHECK(choose(257, 64, true, false).why.find("bias") != std::string::npos);
  CHECK(choose(257, 64, false, true).path == AttentionPath::tiled);
  CHECK(choose(257, 64, false, true).why.find("regions") != std::string::npos);
  params.dropout = 0.1;
  CHECK(choose(257, 64, false, false).path == AttentionPath::tiled);
  CHECK(choose(257, 64, false, false).why.find("dropout") != std::string::npos);
  params.dropout = 0;
  params.phi = Activation::power(3);
  CHECK(choose(257, 64, false, false).path == AttentionPath::tiled);
  CHECK(choose(257, 64, false, false).why == "only φ = x has a linear form");
  params.path = AttentionPath::materialised;
  CHECK(choose(257, 64, false, false).path == AttentionPath::materialised);
  CHECK(choose(257, 64, false, false).why == "asked for by name");
}

TEST_CASE("the linear path by name is refused where it would be wrong, and says why") {
  const Tensor q = f32({2, 3, 5, 4});
  AttentionParams params;
  params.path = AttentionPath::linear;
  params.phi = Activation::power(3);
  CHECK_TEXT(ValueError, attention(q, q, q, params), "'linear'", "x3", "only φ = x has a linear form");
  params.phi = Activation::power(1);
  AttentionMasks masks;
  masks.bias = f32({1, 3, 5, 5});
  CHECK_TEXT(ValueError, attention(q, q, q, params, masks), "'linear'", "bias");
  masks = {};
  masks.regions = of({1, 5}, DType::i32);
  CHECK_TEXT(ValueError, attention(q, q, q, params, masks), "'linear'", "regions");
  Generator generator;
  params.generator = &generator;
  params.dropout = 0.1;
  CHECK_TEXT(ValueError, attention(q, q, q, params), "'linear'", "dropout");
  CHECK(generator.offset() == 0);  // a refused call draws nothing
}

TEST_CASE("wrong shapes, dtypes and numbers") {
  const Tensor q = f32({2, 3, 5, 4}), k = f32({2, 3, 6, 4});
  const AttentionParams params;
  CHECK_TEXT(ShapeError, attention(f32({2, 5, 4}), k, k, params), "[attention]", "(2, 5, 4)", "(2, 3, 6, 4)",
             "(B, H, Nq, d)");
  CHECK_TEXT(ShapeError, attention(f32({1, 3, 5, 4}), k, k, params), "batch", "(1, 3, 5, 4)");
  CHECK_TEXT(ShapeError, attention(f32({2, 2, 5, 4}), k, k, params), "number of heads", "(2, 2, 5, 4)");
  CHECK_TEXT(ShapeError, attention(f32({2, 3, 5, 8}), k, k, params), "width", "(2, 3, 5, 8)");
  CHECK_TEXT(ShapeError, attention(q, k, f32({2, 3, 7, 4}), params), "k and v differ", "(2, 3, 6, 4)", "(2, 3, 7, 4)");
  CHECK_TEXT(DTypeError, attention(q, of({2, 3, 6, 4}, DType::f64), k, params), "[attention]", "f32", "f64");
  CHECK_TEXT(DTypeError, attention(q, k, of({2, 3, 6, 4}, DType::f64), params), "f32", "f64");
  CHECK_TEXT(DTypeError, attention(of({2, 3, 5, 4}, DType::bf16), k, k, params), "f32 or f64", "bf16");
  CHECK_TEXT(ShapeError, attention_qkv(f32({2, 5, 36}), params), "[attention_qkv]", "(2, 5, 36)", "(B, N, 3, H, d)");
  CHECK_TEXT(ShapeError, attention_qkv(f32({2, 5, 2, 3, 4}), params), "(2, 5, 2, 3, 4)", "(B, N, 3, H, d)");
  CHECK_TEXT(DTypeError, attention_qkv(of({2, 5, 3, 3, 4}, DType::i64), params), "f32 or f64", "i64");
  CHECK_TEXT(ShapeError, attention_map(q, f32({2, 3, 6, 5}), params), "[attention_map]", "(2, 3, 6, 5)");
  CHECK_TEXT(ShapeError, attention_norms(f32({2, 5, 12}), q, k, params), "[attention_norms]", "(2, 5, 12)",
             "x (B, N, D)");
  CHECK_TEXT(ShapeError, attention_norms(f32({2, 6, 12}), q, q, params), "[attention_norms]", "(2, 6, 12)");
  CHECK_TEXT(DTypeError, attention_norms(of({2, 5, 12}, DType::f64), q, q, params), "[attention_norms]", "f64");

  AttentionMasks masks;
  masks.key_mask = of({2, 5}, DType::boolean);
  CHECK_TEXT(ShapeError, attention(q, k, k, params, masks), "key_mask (2, 5)", "(2, 3, 5, 4)", "(B, Nk) = (2, 6)");
  masks.key_mask = f32({2, 6});
  CHECK_TEXT(DTypeError, attention(q, k, k, params, masks), "key_mask", "f32", "bool");
  masks = {};
  masks.query_mask = of({2, 6}, DType::boolean);
  CHECK_TEXT(ShapeError, attention(q, k, k, params, masks), "query_mask (2, 6)", "(B, Nq) = (2, 5)");
  masks.query_mask = of({2, 5}, DType::u8);
  CHECK_TEXT(DTypeError, attention(q, k, k, params, masks), "query_mask", "u8", "bool");
  masks = {};
  masks.bias = f32({1, 3, 6, 6});
  CHECK_TEXT(ShapeError, attention(q, k, k, params, masks), "bias (1, 3, 6, 6)", "(2, 3, 5, 4)", "(G, 3, 5, 6)");
  masks.bias = f32({0, 3, 5, 6});
  CHECK_TEXT(ShapeError, attention(q, k, k, params, masks), "bias (0, 3, 5, 6)", "G >= 1");
  masks.bias = f32({3, 5, 6});
  CHECK_TEXT(ShapeError, attention(q, k, k, params, masks), "bias (3, 5, 6)");
  masks.bias = of({1, 3, 5, 6}, DType::f64);
  CHECK_TEXT(DTypeError, attention(q, k, k, params, masks), "f32", "f64");
  masks = {};
  masks.regions = of({1, 6}, DType::i32);
  CHECK_TEXT(ShapeError, attention(q, k, k, params, masks), "as many queries as keys", "Nq = 5, Nk = 6");
  CHECK_TEXT(ShapeError, attention(q, q, q, params, masks), "regions (1, 6)", "(G, 5)");
  masks.regions = of({1, 5}, DType::i64);
  CHECK_TEXT(DTypeError, attention(q, q, q, params, masks), "regions", "i64", "i32");

  const auto with = [](auto change) {
    AttentionParams changed;
    changed.phi = Activation::power(3);
    change(changed);
    return changed;
  };
  CHECK_TEXT(ValueError, attention(q, k, k, with([](auto& p) { p.divisor = 0; })), "[attention]", "divisor", "got 0");
  CHECK_TEXT(ValueError, attention(q, k, k, with([](auto& p) { p.divisor = 1.0 / 0.0; })), "divisor", "inf");
  CHECK_TEXT(ValueError, attention(q, k, k, with([](auto& p) { p.score_scale = 0.0 / 0.0; })), "score_scale", "nan");
  CHECK_TEXT(ValueError, attention(q, k, k, with([](auto& p) { p.dropout = 1; })), "dropout", "0 <= p < 1", "got 1");
  CHECK_TEXT(ValueError, attention(q, k, k, with([](auto& p) { p.dropout = -0.1; })), "dropout", "got -0.1");
  CHECK_TEXT(ValueError, attention(q, k, k, with([](auto& p) { p.dropout = 0.5; })), "without a generator");
  CHECK_TEXT(ValueError, attention(q, k, k, with([](auto& p) { p.phi.id = 99; })), "id 99", "parse_activation");
  // softmax ignores the divisor.
  CHECK_NOTHROW(attention(q, k, k, with([](auto& p) { p.phi = Activation::softmax(), p.divisor = 0; })));
}

TEST_CASE("empty sizes give empty or zero results and gradients") {
  const AttentionParams params;
  for (const Shape& shape : {Shape{0, 2, 4, 3}, Shape{2, 0, 4, 3}, Shape{2, 2, 0, 3}, Shape{2, 2, 4, 0}}) {
    Tensor q = f32(shape);
    q.set_requires_grad(true);
    const Tensor out = attention(q, q, q, params);
    CHECK(out.shape() == Shape{shape[0], shape[2], shape[1] * shape[3]});
    out.backward(ones(out.shape()));
    CHECK(q.grad().shape() == shape);
    CHECK(attention_map(q, q, params).shape() == Shape{shape[0], shape[1], shape[2], shape[2]});
    CHECK(attention_norms(f32({shape[0], shape[2], 5}), q, q, params).a.shape() == Shape{shape[0], shape[1]});
  }
  Tensor q = ones({1, 1, 3, 2});
  q.set_requires_grad(true);
  const Tensor none = f32({1, 1, 0, 2});
  const Tensor out = attention(q, none, none, params);  // no key at all: as if all were hidden
  CHECK(out.to_vector<float>() == std::vector<float>(6, 0));
  out.backward(ones(out.shape()));
  CHECK(q.grad().to_vector<float>() == std::vector<float>(6, 0));
}

TEST_CASE("a saved argument changed in place is named") {
  Tensor q = ones({1, 1, 3, 2}), k = ones({1, 1, 3, 2}), v = ones({1, 1, 3, 2});
  q.set_requires_grad(true);
  const Tensor out = attention(q, k, v, {});
  v.fill_(2);
  CHECK_TEXT(GradError, out.backward(ones(out.shape())), "attention", "'v'");
}
