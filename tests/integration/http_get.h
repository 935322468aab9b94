// HttpGet: one HTTP request to a port of this machine.
#ifndef FLASHBOB_TESTS_INTEGRATION_HTTP_GET_H_
#define FLASHBOB_TESTS_INTEGRATION_HTTP_GET_H_

#include <string>

namespace flashbob::integration {

// The whole answer, head and body; empty where there is none.
std::string HttpGet(int port, const std::string& path);

}  // namespace flashbob::integration

#endif  // FLASHBOB_TESTS_INTEGRATION_HTTP_GET_H_
