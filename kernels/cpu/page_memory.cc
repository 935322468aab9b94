#include "kernels/cpu/page_memory.h"

#include <sys/mman.h>

namespace flashbob::cpu {

PageMemory::~PageMemory() {
  const MutexLock lock(mutex_);
  for (const auto& [pointer, bytes] : blocks_) munmap(pointer, bytes);
}

void* PageMemory::Allocate(size_t bytes) {
  void* const pointer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pointer == MAP_FAILED) return nullptr;
  const MutexLock lock(mutex_);
  blocks_.emplace(pointer, bytes);
  return pointer;
}

bool PageMemory::Free(void* pointer) {
  size_t bytes = 0;
  {
    const MutexLock lock(mutex_);
    const auto block = blocks_.find(pointer);
    if (block == blocks_.end()) return false;
    bytes = block->second;
    blocks_.erase(block);
  }
  munmap(pointer, bytes);
  return true;
}

}  // namespace flashbob::cpu
