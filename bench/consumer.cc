// Penstock's consumer in bench/peers.py. It takes batches without end, reads
// one byte of every cache line and reports the time of each batch to the
// driver. The protocol is that of bench/peers/common.py: JSON lines over the
// driver's Unix socket.
//
//   consumer SOCKET DELIVERY [no-touch]      (started by penstock run)
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "bench/peers/touch.h"
#include "client/penstock.hpp"
#include "common/format.h"

namespace {

using penstock::Format;
using penstock::Print;

class Driver {
 public:
  explicit Driver(const std::string& path)
      : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) {
      throw std::runtime_error(path + " is too long for a socket's path");
    }
    path.copy(address.sun_path, path.size());
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) != 0) {
      throw std::runtime_error(path + ": " + strerror(errno));
    }
  }
  ~Driver() { close(socket_); }

  void Send(const std::string& line) {
    if (send(socket_, line.data(), line.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(line.size())) {
      throw std::runtime_error("the driver is gone");
    }
  }
  // One line, "begin", or the end.
  void WaitToBegin() {
    for (char byte = 0; byte != '\n';) {
      if (recv(socket_, &byte, 1, 0) != 1) {
        throw std::runtime_error("the driver is gone");
      }
    }
  }

 private:
  const int socket_;
};

double HalfToDouble(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const double mantissa = half & 1023;
  const double value = exponent == 0
                           ? std::ldexp(mantissa, -24)
                           : std::ldexp(mantissa + 1024, exponent - 25);
  return half >> 15 ? -value : value;
}

const char* NameOf(uint32_t dtype) {
  switch (dtype) {
    case PENSTOCK_UINT8:
      return "uint8";
    case PENSTOCK_FLOAT16:
      return "float16";
    case PENSTOCK_FLOAT32:
      return "float32";
    case PENSTOCK_FLOAT64:
      return "float64";
    case PENSTOCK_INT32:
      return "int32";
    default:
      return "int64";
  }
}

// Value i of a feature.
double ValueOf(const penstock_feature& feature, const void* data, uint64_t i) {
  switch (feature.dtype) {
    case PENSTOCK_UINT8:
      return static_cast<const uint8_t*>(data)[i];
    case PENSTOCK_FLOAT16:
      return HalfToDouble(static_cast<const uint16_t*>(data)[i]);
    case PENSTOCK_FLOAT32:
      return static_cast<const float*>(data)[i];
    case PENSTOCK_FLOAT64:
      return static_cast<const double*>(data)[i];
    case PENSTOCK_INT32:
      return static_cast<const int32_t*>(data)[i];
    case PENSTOCK_INT64:
      return static_cast<double>(static_cast<const int64_t*>(data)[i]);
    default:
      throw std::runtime_error("a first feature of another dtype");
  }
}

// What the driver compares with the peers' first batches.
std::string FirstBatch(const penstock_feature& feature,
                       const penstock::Batch& batch) {
  std::string shape = std::to_string(batch.rows());
  uint64_t values = batch.rows();
  for (uint32_t i = 0; i < feature.dimensions; ++i) {
    shape += ", " + std::to_string(feature.shape[i]);
    values *= static_cast<uint64_t>(feature.shape[i]);
  }
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < values; ++i) {
    const double value = ValueOf(feature, batch.data(0), i);
    sum += value;
    squares += value * value;
  }
  const double mean = sum / static_cast<double>(values);
  return Format(
      R"({{"shape": [{}], "dtype": "{}", "mean": {:.3f}, "std": {:.3f}, )"
      R"("labels": {}}})",
      shape, NameOf(feature.dtype), mean,
      std::sqrt(squares / static_cast<double>(values) - mean * mean),
      batch.rows());
}

void Consume(const std::string& socket_path, const std::string& delivery,
             bool touch) {
  Driver driver(socket_path);
  const char* const rank = getenv("PENSTOCK_RANK");
  driver.Send(Format("{{\"event\": \"imported\", \"rank\": {}, \"pid\": {}}}\n",
                     rank == nullptr ? "0" : rank, getpid()));
  driver.WaitToBegin();

  penstock::Reader reader({.delivery = delivery});
  const auto features = static_cast<uint32_t>(reader.element_spec().size());
  const std::string_view second =
      features > 1 ? reader.element_spec()[1].name : "";
  const bool is_list = second.ends_with(".length");
  // Packed rows have the lengths of their documents here, then zeros.
  uint32_t seq_lens = 0;
  while (seq_lens < features &&
         std::string_view(reader.element_spec()[seq_lens].name) != "seq_lens") {
    ++seq_lens;
  }
  uint64_t samples = 0, cells = 0, items = 0;
  for (penstock::Epoch epoch : reader.epochs()) {
    for (penstock::Batch& batch : epoch) {
      for (uint32_t i = 0; touch && i < features; ++i) {
        peers_touch(batch.data(i), batch.rows() * batch.feature(i).row_bytes);
      }
      if (samples == 0) {
        driver.Send(Format("{{\"event\": \"first\", \"batch\": {}}}\n",
                           FirstBatch(batch.feature(0), batch)));
      }
      if (seq_lens < features) {
        const auto* const lengths =
            static_cast<const int32_t*>(batch.data(seq_lens));
        const uint64_t places =
            batch.rows() *
            static_cast<uint64_t>(batch.feature(seq_lens).shape[0]);
        for (uint64_t i = 0; i < places; ++i) {
          samples += lengths[i] > 0 ? 1 : 0;
          items += static_cast<uint64_t>(lengths[i]);
        }
        cells +=
            batch.rows() * static_cast<uint64_t>(batch.feature(0).shape[0]);
      } else {
        samples += batch.rows();
      }
      if (is_list) {
        const auto* const lengths = static_cast<const int64_t*>(batch.data(1));
        for (uint64_t row = 0; row < batch.rows(); ++row) {
          items += static_cast<uint64_t>(lengths[row]);
        }
        cells +=
            batch.rows() * static_cast<uint64_t>(batch.feature(0).shape[0]);
      }
      const std::chrono::duration<double> now =
          std::chrono::steady_clock::now().time_since_epoch();
      driver.Send(
          Format("{{\"event\": \"batch\", \"samples\": {}, \"cells\": {}, "
                 "\"items\": {}, \"t\": {:.6f}}}\n",
                 samples, cells, items, now.count()));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool touch = argc == 3;
  if (!touch && (argc != 4 || std::string(argv[3]) != "no-touch")) {
    Print(stderr, "usage: consumer SOCKET DELIVERY [no-touch]\n");
    return 2;
  }
  try {
    Consume(argv[1], argv[2], touch);
  } catch (const std::exception& error) {
    Print(stderr, "consumer: {}\n", error.what());
    return 1;
  }
}
