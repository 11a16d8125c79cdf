// safetensors files: reading (memory-mapped, hostile headers refused) and writing (atomic).
//
// Format: u64 little-endian header length n; n bytes of JSON, name -> {dtype, shape, data_offsets}; then the data,
// row-major, little-endian. Source: the format's own description; limits as the reference implementation has them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/tensor.h"

namespace polygrad {

struct SafetensorsEntry {
  std::string name;
  std::string stored_dtype;  // as in the file: "F32", "I16", ...
  Shape shape;
};

// An open file. Cheap to open: data is read when a tensor is asked for. Movable.
class SafetensorsFile {
 public:
  // Throws IoError, naming the file and what is wrong: missing, too short, header too large, not UTF-8 or JSON, an
  // unknown dtype, offsets that overlap, leave gaps or do not match the shapes, overflow. Nothing large is allocated
  // before the header is proved consistent with the file's size.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::string& path() const;
  // In the order of their data in the file.
  const std::vector<SafetensorsEntry>& entries() const;
  const std::map<std::string, std::string>& metadata() const;
  bool contains(const std::string& name) const;
  // A copy of the data on the CPU (unaligned files are fine). F64 F32 F16 BF16 I64 I32 U8 BOOL keep their dtype; I8,
  // I16, U16 widen to i32, U32 to i64 (exact). Throws IoError for an unknown name, and for FP8, C64 and U64.
  Tensor load(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// All tensors of a file, in file order.
NamedTensors load_safetensors(const std::string& path);
// Writes beside the target, syncs, renames: the target is either the old file or the whole new one. Data starts at a
// multiple of 64 bytes; tensors are stored in the order given. Throws IoError (no space: it says so, and the old file
// is intact) and ValueError (duplicate name).
void save_safetensors(const std::string& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace polygrad
