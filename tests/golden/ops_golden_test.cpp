// Ops against torch and timm, in f64 and in f32: every row of the set's ops/manifest.tsv is checked here, or by another
// file, or belongs to a family that isn't built yet; a row that is none of these fails.
#include <doctest/doctest.h>

#include <functional>
#include <set>

#include "engine/autograd.h"
#include "ops/copy.h"
#include "ops/gemm_provider.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/optim_step.h"
#include "ops/reduce.h"
#include "ops/softmax.h"
#include "ops/unary.h"
#include "ops/view.h"
#include "tests/golden/golden_files.h"
#include "tests/support/skip.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

// One row of the manifest with its tensors, in the precision that is being tested.
class Row {
 public:
  Row(const GoldenCase& row, const SafetensorsFile& file, DType dtype) : row_(row), file_(file), dtype_(dtype) {}

  const GoldenCase& attributes() const { return row_; }
  bool has(const std::string& name) const { return file_.contains(row_.name + "/" + name); }
  // A float tensor in the tested precision; ids as they are.
  Tensor load(const std::string& name) const {
    const Tensor tensor = file_.load(row_.name + "/" + name);
    return tensor.dtype() == DType::f64 ? tensor.to(dtype_) : tensor;
  }
  void expect(const std::string& name, const Tensor& got) const {
    CAPTURE(name);
    const Tensor expected = file_.load(row_.name + "/" + name);
    CHECK(got.shape() == expected.shape());
    CHECK(largest_difference(values_of(got), values_of(expected)) <= tolerance() * largest(values_of(expected)));
  }

 private:
  double tolerance() const {
    if (dtype_ == DType::f64) return 1e-10;
    const bool steep = row_.name.find(".large") != std::string::npos || row_.op == "exp" || row_.op == "exp_neg";
    return steep ? 1e-4 : 1e-5;
  }

  const GoldenCase& row_;
  const SafetensorsFile& file_;
  DType dtype_;
};

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

// y = f(inputs) and the gradients of sum(y·gy), whose names are the inputs' with a g before them. Inputs that the row
// lacks are undefined.
void check_differentiable(const Row& row, const std::vector<std::string>& names, const Function& f) {
  std::vector<Tensor> inputs;
  for (const std::string& name : names) {
    inputs.push_back(row.has(name) ? row.load(name) : Tensor());
    if (row.has("g" + name)) inputs.back().set_requires_grad(true);
  }
  const Tensor y = f(inputs);
  row.expect("y", y.detach());
  y.backward(row.load("gy"));
  int gradients = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!row.has("g" + names[i])) continue;
    row.expect("g" + names[i], inputs[i].grad());
    ++gradients;
  }
  CHECK(gradients > 0);
}

std::vector<std::int64_t> integers(const std::string& list) {
  std::vector<std::int64_t> values;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) values.push_back(std::stoll(word));
  return values;
}

void check_cross_entropy(const Row& row) {
  const GoldenCase& a = row.attributes();
  CrossEntropyOptions options;
  options.label_smoothing = a.number("label_smoothing", 0);
  options.ignore_index = a.integer("ignore_index", -100);
  const std::string reduction = a.attributes.at("reduction");
  options.reduction = reduction == "none" ? Reduction::none : reduction == "sum" ? Reduction::sum : Reduction::mean;
  if (a.attributes.count("weight") != 0) options.class_weight = row.load(a.attributes.at("weight"));
  check_differentiable(row, {"x", "target"}, [&](const std::vector<Tensor>& t) {
    return a.op == "cross_entropy" ? cross_entropy(t[0], t[1], options) : cross_entropy_soft(t[0], t[1], options);
  });
}

// Calls step(parameter, gradient, number from 1) for each of the row's gradients, and compares the parameter after
// each.
void check_steps(const Row& row, const Tensor& parameter,
                 const std::function<void(const Tensor&, std::int64_t)>& step) {
  const Tensor gradients = row.load("grads"), expected = row.load("params");
  const double tolerance = parameter.dtype() == DType::f64 ? 1e-10 : 1e-5;
  for (std::int64_t t = 0; t < gradients.size(0); ++t) {
    CAPTURE(t);
    step(select(gradients, 0, t).contiguous(), t + 1);
    const std::vector<double> want = values_of(select(expected, 0, t));
    CHECK(largest_difference(values_of(parameter), want) <= tolerance * largest(want));
  }
}

void check_adamw(const Row& row) {
  const GoldenCase& a = row.attributes();
  const Tensor parameter = row.load("p0");
  Tensor m = Tensor::empty(parameter.shape(), parameter.options()).fill_(0), v = m.clone();
  check_steps(row, parameter, [&](const Tensor& gradient, std::int64_t number) {
    adamw_step(parameter, gradient, m, v,
               {.lr = a.number("lr", 0),
                .beta1 = a.number("beta1", 0),
                .beta2 = a.number("beta2", 0),
                .eps = a.number("eps", 0),
                .weight_decay = a.number("weight_decay", 0),
                .step = number});
  });
  row.expect("exp_avg_after", m);
  row.expect("exp_avg_sq_after", v);
}

void check_sgd(const Row& row) {
  const GoldenCase& a = row.attributes();
  const Tensor parameter = row.load("p0");
  Tensor buffer;
  if (a.number("momentum", 0) > 0) buffer = Tensor::empty(parameter.shape(), parameter.options()).fill_(0);
  check_steps(row, parameter, [&](const Tensor& gradient, std::int64_t number) {
    sgd_step(parameter, gradient, buffer,
             {.lr = a.number("lr", 0),
              .momentum = a.number("momentum", 0),
              .dampening = a.number("dampening", 0),
              .weight_decay = a.number("weight_decay", 0),
              .nesterov = a.integer("nesterov", 0) != 0,
              .first = number == 1});
  });
  if (row.has("momentum_buffer_after")) row.expect("momentum_buffer_after", buffer);
}

void check_clip_grad_norm(const Row& row) {
  REQUIRE(row.attributes().number("norm_type", 2) == 2);
  std::vector<Tensor> gradients;
  for (int i = 0; row.has("g" + std::to_string(i)); ++i) gradients.push_back(row.load("g" + std::to_string(i)));
  REQUIRE(!gradients.empty());
  const double norm = clip_grad_norm(gradients, row.attributes().number("max_norm", 0));
  const double expected = values_of(row.load("total_norm")).at(0);
  CHECK(std::abs(norm - expected) <= (gradients[0].dtype() == DType::f64 ? 1e-10 : 1e-5) * expected);
  for (std::size_t i = 0; i < gradients.size(); ++i) row.expect("out" + std::to_string(i), gradients[i]);
}

void check_topk(const Row& row) {
  REQUIRE(row.attributes().integer("largest", 1) == 1);
  const auto [values, indices] = topk(row.load("x"), row.attributes().integer("k", 1));
  row.expect("values", values);
  CHECK(indices.to_vector<std::int64_t>() == row.load("indices").to_vector<std::int64_t>());
}

using Check = std::function<void(const Row&)>;

Check unary(Tensor (*map)(const Tensor&)) {
  return [map](const Row& row) {
    check_differentiable(row, {"x"}, [map](const std::vector<Tensor>& t) { return map(t[0]); });
  };
}

Check along_dim(Tensor (*map)(const Tensor&, int)) {
  return [map](const Row& row) {
    const int dim = static_cast<int>(row.attributes().integer("dim", -1));
    check_differentiable(row, {"x"}, [=](const std::vector<Tensor>& t) { return map(t[0], dim); });
  };
}

const std::map<std::string, Check>& checks() {
  static const std::map<std::string, Check> kChecks = {
      {"gelu_erf", unary(gelu)},
      {"gelu_tanh", unary(gelu_tanh)},
      {"relu", unary(relu)},
      {"elu", unary(elu)},
      {"tanh", unary(tanh)},
      {"sigmoid", unary(sigmoid)},
      {"exp", unary(exp)},
      {"exp_neg", unary(exp_neg)},
      {"silu", unary(silu)},
      {"softplus", unary(softplus)},
      {"x2", unary([](const Tensor& x) { return pow(x, 2); })},
      {"x3", unary([](const Tensor& x) { return pow(x, 3); })},
      {"softmax", along_dim(softmax)},
      {"log_softmax", along_dim(log_softmax)},
      {"layer_norm",
       [](const Row& row) {
         const double eps = row.attributes().number("eps", 1e-5);
         check_differentiable(row, {"x", "w", "b"},
                              [eps](const std::vector<Tensor>& t) { return layer_norm(t[0], t[1], t[2], eps); });
       }},
      {"linear",
       [](const Row& row) {
         check_differentiable(row, {"x", "w", "b"},
                              [](const std::vector<Tensor>& t) { return linear(t[0], t[1], t[2]); });
       }},
      {"matmul",
       [](const Row& row) {
         check_differentiable(row, {"a", "b"}, [](const std::vector<Tensor>& t) { return matmul(t[0], t[1]); });
       }},
      {"embedding",
       [](const Row& row) {
         const std::int64_t padding = row.attributes().integer("padding_idx", -1);
         check_differentiable(row, {"w", "ids"},
                              [padding](const std::vector<Tensor>& t) { return embedding(t[0], t[1], padding); });
       }},
      {"roll",
       [](const Row& row) {
         const std::vector<std::int64_t> shifts = integers(row.attributes().attributes.at("shifts")),
                                         dims = integers(row.attributes().attributes.at("dims"));
         check_differentiable(row, {"x"}, [&](const std::vector<Tensor>& t) {
           return roll(t[0], shifts, std::vector<int>(dims.begin(), dims.end()));
         });
       }},
      {"cross_entropy", check_cross_entropy},
      {"cross_entropy_soft", check_cross_entropy},
      {"mse",
       [](const Row& row) {
         REQUIRE(row.attributes().attributes.at("reduction") == "mean");
         check_differentiable(row, {"x", "target"},
                              [](const std::vector<Tensor>& t) { return mse_loss(t[0], t[1], Reduction::mean); });
       }},
      {"topk", check_topk},
      {"adamw", check_adamw},
      {"sgd", check_sgd},
      {"clip_grad_norm", check_clip_grad_norm},
  };
  return kChecks;
}

// Checked by the other files of this folder.
const std::set<std::string> kElsewhere = {"attention_norms", "onecycle_lr", "timm_cosine", "multistep"};
// Families that are not built: convolution, batch norm, pooling, resizing, detection; and losses, normalisation and an
// optimizer that no model here uses.
const std::set<std::string> kNotBuilt = {"adam",
                                         "adaptive_avg_pool2d",
                                         "adaptive_max_pool2d",
                                         "anchors",
                                         "avg_pool2d",
                                         "batch_norm",
                                         "batched_nms",
                                         "bbox_decode",
                                         "bbox_encode",
                                         "bce_with_logits",
                                         "box_iou",
                                         "conv2d",
                                         "conv_transpose2d",
                                         "grid_sample",
                                         "interpolate",
                                         "l1",
                                         "l2_normalize",
                                         "max_iou_assign",
                                         "max_pool2d",
                                         "nms",
                                         "paste_masks",
                                         "roi_align",
                                         "smooth_l1",
                                         "valid_flags",
                                         "paste_masks_torchvision"};

}  // namespace

TEST_CASE("ops against torch and timm") {
  if (golden_folder().empty()) return skip("sample data missing: POLYGRAD_GOLDEN is not set");
  const std::string folder = golden_folder() + "/ops";
  const GemmProvider before = gemm_provider();
  for (const GemmProvider provider : {GemmProvider::onednn, GemmProvider::eigen}) {
    if (!has_gemm_provider(provider)) continue;
    set_gemm_provider(provider);
    for (const DType dtype : {DType::f64, DType::f32}) {
      const std::string run = std::string(to_string(dtype)) + ", " + to_string(provider);
      CAPTURE(run);
      int checked = 0;
      std::map<std::string, int> left_out;
      for (const GoldenCase& row : read_manifest(folder + "/manifest.tsv")) {
        CAPTURE(row.name);
        const auto check = checks().find(row.op);
        if (check == checks().end()) {
          CHECK_MESSAGE((kElsewhere.count(row.op) + kNotBuilt.count(row.op) == 1), "unknown op " << row.op);
          ++left_out[row.op];
          continue;
        }
        const SafetensorsFile file(folder + "/" + row.file);
        check->second(Row(row, file, dtype));
        ++checked;
      }
      CHECK(checked > 0);
      std::string rest;
      for (const auto& [op, count] : left_out) {
        rest += " " + op + (kElsewhere.count(op) ? " (elsewhere) " : " ") + std::to_string(count);
      }
      MESSAGE(run << ": " << checked << " rows checked; left out:" << rest);
    }
  }
  set_gemm_provider(before);
}
