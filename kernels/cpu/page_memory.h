// PageMemory: large blocks of host memory, each on pages of its own, that go back to the system when they are freed.
//
// From the heap, blocks of many sizes that live for long would leave holes between what others allocate for a moment:
// under a mixed load the heap of a server grew to three times the memory that was in use.
//
// Thread safety: any thread.
#ifndef FLASHBOB_KERNELS_CPU_PAGE_MEMORY_H_
#define FLASHBOB_KERNELS_CPU_PAGE_MEMORY_H_

#include <cstddef>
#include <unordered_map>

#include "kernels/base/mutex.h"

namespace flashbob::cpu {

class PageMemory {
 public:
  // Smaller blocks are better off in the heap: a system has some ten thousands of mappings for a process.
  static constexpr size_t kSmallestBlock = size_t{256} << 10;

  PageMemory() = default;
  ~PageMemory();
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;

  // Null where the system has no such block.
  void* Allocate(size_t bytes) FLASHBOB_EXCLUDES(mutex_);
  // False where the block is not of here.
  bool Free(void* pointer) FLASHBOB_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::unordered_map<void*, size_t> blocks_ FLASHBOB_GUARDED_BY(mutex_);  // bytes of each
};

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_PAGE_MEMORY_H_
