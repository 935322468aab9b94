#include <flashbob/client.h>

#include <iostream>

int main(int argc, char** argv) {
  const flashbob::client::Shape shape = {1, 4, 64, 32};  // batch, heads, tokens, head dim
  const std::vector<float> q(8192, 0.5f), k(8192, 0.25f), v(8192, 1.0f), dout(8192, 0.1f), uq(8192, 1.0f);

  auto client = flashbob::client::Client::Connect({.server = argc > 1 ? argv[1] : "127.0.0.1:50051"});
  if (!client.ok()) return std::cerr << client.status() << "\n", 1;
  auto result = client->DoubleBackward(
      {.q = {q, shape}, .k = {k, shape}, .v = {v, shape}, .dout = {dout, shape}, .uq = {uq, shape}}, {.causal = true});
  if (!result.ok()) return std::cerr << result.status() << "\n", 1;
  std::cout << "gq has " << result->Values<float>("gq").size() << " elements\n";
}
