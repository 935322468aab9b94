// ServerInfo: what a server is and what the caller may do there. Plain values.
#ifndef FLASHBOB_CLIENT_CPP_FLASHBOB_SERVER_INFO_H_
#define FLASHBOB_CLIENT_CPP_FLASHBOB_SERVER_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "flashbob/attention.h"

namespace flashbob::client {

// Use of one memory pool, in bytes.
struct PoolInfo {
  int64_t limit_bytes = 0;         // upper bound of reserved_bytes
  int64_t reserved_bytes = 0;      // by requests now
  int64_t used_bytes = 0;          // really allocated now
  int64_t high_water_bytes = 0;    // the most that was ever reserved
  int64_t largest_free_bytes = 0;  // the largest block that could be had at once
};

struct Device {
  std::string name = {};   // "cpu", "cuda:0"
  std::string model = {};  // what the hardware calls itself
  PoolInfo memory = {};
  int compute_units = 0;  // cores or multiprocessors
};

// Every limit that an error can name.
struct Limits {
  int64_t max_chunk_bytes = 0;
  int64_t max_message_bytes = 0;
  int64_t max_request_bytes = 0;  // inputs and inline outputs of one request
  int64_t max_queued_requests = 0;
  int64_t max_metadata_bytes = 0;
  double idle_upload_seconds = 0;  // an upload that stalls for so long is cut
  int64_t max_lease_seconds = 0;   // 0: this server keeps no tensors
  int64_t max_sequences = 0;       // in one packed batch
};

// A set of problems that a device computes: every combination of what is listed.
struct Capability {
  std::vector<Operation> operations = {};
  std::vector<DataType> dtypes = {};
  std::vector<Layout> layouts = {};
  int64_t max_head_dim = 0;
  int64_t max_value_dim = 0;
  std::string device = {};
};

// The caller's tenant: bounds (0: none but the server's) and use.
struct TenantInfo {
  std::string name = {};
  int64_t max_bytes = 0;
  int64_t used_bytes = 0;
  int64_t max_in_flight = 0;
  int64_t in_flight = 0;
};

struct ServerInfo {
  std::string version = {};
  std::vector<Device> devices = {};
  Limits limits = {};
  std::vector<Capability> capabilities = {};
  TenantInfo tenant = {};
  PoolInfo host_memory = {};  // of the memory that holds requests' inputs and outputs
};

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_FLASHBOB_SERVER_INFO_H_
