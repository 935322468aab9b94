// Catalogue: what the clients of the soak ask for, with the answers that the CPU engine gives in this process: all
// operations, dtypes, masks and layouts, lengths from 0 to thousands. An engine gives the same bits however its work is
// cut, so that a server on the CPU engine must give these.
//
// Thread safety: immutable once made.
#ifndef FLASHBOB_TESTS_SOAK_CATALOGUE_H_
#define FLASHBOB_TESTS_SOAK_CATALOGUE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "flashbob/attention.h"
#include "kernels/conformance/case.h"
#include "kernels/conformance/host_tensor.h"

namespace flashbob::soak {

struct Entry {
  std::string name;
  // Its inputs point into this entry; its outputs are whatever the operation gives.
  client::Request request;
  int64_t bytes = 0;  // of inputs and outputs
  std::map<std::string, std::vector<std::byte>> expected;
  std::vector<conformance::HostTensor> inputs;

  // Empty, or what is wrong with an answer.
  std::string Check(const client::Result& result) const;
  std::string Check(const std::string& output, const client::Tensor& tensor) const;
};

class Catalogue {
 public:
  explicit Catalogue(uint64_t seed);

  // Any of them, large ones now and then.
  const Entry& Draw(std::mt19937_64& random) const;
  // One whose tensors take several chunks.
  const Entry& DrawLarge(std::mt19937_64& random) const;
  size_t size() const { return small_.size() + large_.size(); }

 private:
  std::vector<std::unique_ptr<const Entry>> small_;
  std::vector<std::unique_ptr<const Entry>> large_;
};

}  // namespace flashbob::soak

#endif  // FLASHBOB_TESTS_SOAK_CATALOGUE_H_
