#include "broker/io/fetching_reader.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

// While some reads are of files and others fetch, neither wakes for the other.
constexpr uint64_t kLookNs = 500'000;

template <typename Each>
void EachRemote(const ReadRequest& request, const Each& each) {
  if (request.remote != nullptr) each(request);
  for (const ReadPart& part : request.more) {
    if (part.remote != nullptr) each(part);
  }
}

bool IsKept(const ReadRequest& request) {
  bool kept = true;
  EachRemote(request, [&kept](const ReadPart& part) {
    kept = kept && part.remote->Keeps(part.offset, part.bytes);
  });
  return kept;
}

}  // namespace

FetchingReader::FetchingReader(std::unique_ptr<StorageReader> files)
    : files_(std::move(files)), signal_(std::make_shared<FetchSignal>()) {}

FetchingReader::~FetchingReader() {
  for (Fetch& fetch : fetches_) Unhold(&fetch);
}

bool FetchingReader::Start(uint32_t ticket, const ReadRequest& request,
                           std::span<std::byte> into, uint32_t pinned) {
  if (IsKept(request)) return files_->Start(ticket, request, into, pinned);
  fetches_.resize(depth());
  Fetch& fetch = fetches_[ticket];
  fetch = {request, into, pinned, std::make_shared<FetchWait>(signal_), true};
  // Reads that were answered at once share a buffer until they are taken.
  fetch.request.nowait = false;
  for (ReadPart& part : fetch.request.more) part.nowait = false;
  EachRemote(fetch.request, [&fetch](const ReadPart& part) {
    part.remote->Hold({part.offset, part.bytes}, fetch.wait,
                      RemoteFile::Ask::kHurry);
  });
  ++fetching_;
  return false;
}

void FetchingReader::Unhold(Fetch* fetch) {
  if (!std::exchange(fetch->held, false)) return;
  EachRemote(fetch->request, [](const ReadPart& part) {
    part.remote->Release({part.offset, part.bytes});
  });
}

// Reads what has come. True: there is such a read.
bool FetchingReader::StartFetched() {
  bool any = false;
  for (uint32_t ticket = 0; fetching_ > 0 && ticket < fetches_.size();
       ++ticket) {
    Fetch& fetch = fetches_[ticket];
    if (fetch.wait == nullptr || !fetch.wait->over() ||
        !fetch.wait->status().ok()) {
      continue;
    }
    fetch.wait = nullptr;
    --fetching_;
    files_->Start(ticket, fetch.request, fetch.into, fetch.pinned);
    any = true;
  }
  if (any) files_->Submit();
  return any;
}

bool FetchingReader::NextFailed(Done* done) {
  for (uint32_t ticket = 0; ticket < fetches_.size(); ++ticket) {
    Fetch& fetch = fetches_[ticket];
    if (fetch.wait == nullptr || !fetch.wait->over()) continue;
    *done = {};
    done->ticket = ticket;
    done->status = fetch.wait->status();
    if (done->status.ok()) continue;
    fetch.wait = nullptr;
    --fetching_;
    Unhold(&fetch);
    return true;
  }
  return false;
}

bool FetchingReader::Next(uint64_t wait_ns, Done* done) {
  for (;;) {
    StartFetched();
    const uint64_t now_ns =
        fetching_ == 0 ? wait_ns : std::min(wait_ns, kLookNs);
    if (files_->in_flight() > 0 || fetching_ == 0) {
      if (files_->Next(now_ns, done)) {
        if (done->ticket < fetches_.size()) Unhold(&fetches_[done->ticket]);
        return true;
      }
      if (fetching_ == 0) return false;
    } else {
      signal_->Wait(wait_ns);
    }
    if (NextFailed(done)) return true;
    if (wait_ns != kWaitForever && !StartFetched()) return false;
  }
}

bool FetchingReader::Arrived(uint32_t ticket) {
  return !Fetches(ticket) && files_->Arrived(ticket);
}

bool FetchingReader::Fetches(uint32_t ticket) const {
  return ticket < fetches_.size() && fetches_[ticket].wait != nullptr;
}

void FetchingReader::Release(uint32_t ticket) {
  // A read that failed before it began is none of the files'.
  files_->Release(ticket);
}

}  // namespace penstock
