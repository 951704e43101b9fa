#include "broker/stream/stream_ledger.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace penstock {

using nlohmann::json;

StreamLedger::StreamLedger(uint64_t begin, uint64_t to_finish)
    : to_finish_(to_finish), end_(begin) {}

void StreamLedger::Join(uint32_t number, uint64_t token, uint64_t ring_rows,
                        uint64_t put_rows) {
  if (number < next_producer_) return;
  next_producer_ = number + 1;
  Producer& producer = producers_[number];
  producer.token = token;
  producer.ring_rows = ring_rows;
  producer.put_rows = put_rows;
  ++at_work_;
  to_finish_ = std::max(to_finish_, finished_ + at_work_);
}

Status StreamLedger::CheckPut(uint32_t number, uint64_t ring_position,
                              uint64_t rows) const {
  const auto found = producers_.find(number);
  if (found == producers_.end() || !found->second.at_work) {
    return InvalidArgumentError("a put by producer {}, which is not at work",
                                number);
  }
  const Producer& producer = found->second;
  const uint64_t ring = producer.ring_rows;
  // Directly after the last put, or at the start of the ring if that did not
  // fit.
  const bool follows =
      ring_position == producer.end ||
      (ring_position > producer.end && ring_position - producer.end < ring &&
       ring_position % ring == 0);
  if (rows == 0 || rows > producer.put_rows || !follows ||
      rows > ring - ring_position % ring ||
      ring_position + rows - producer.freed > ring) {
    return InvalidArgumentError(
        "an impossible put of {} rows at {}: the last ended at {}, room is up "
        "to {}",
        rows, ring_position, producer.end, producer.freed + ring);
  }
  if (chunks_.size() >= kChunksMax) {
    return ResourceExhaustedError(
        "the limit of {} puts that wait for the ranks is reached: put more "
        "rows at once",
        kChunksMax);
  }
  return OkStatus();
}

void StreamLedger::Put(uint32_t number, uint64_t ring_position, uint64_t rows,
                       uint64_t first) {
  if (first < end_ || !Keep({end_, rows, number, ring_position})) return;
  Producer& producer = producers_.at(number);
  producer.end = ring_position + rows;
  producer.rows += rows;
}

bool StreamLedger::Keep(const Chunk& chunk) {
  const auto found = producers_.find(chunk.producer);
  if (found == producers_.end()) return false;
  Producer& producer = found->second;
  const uint64_t ring = producer.ring_rows;
  if (chunk.rows == 0 || chunk.rows > ring - chunk.place % ring) return false;
  Chunk* const last = chunks_.empty() ? nullptr : &chunks_.back();
  if (last != nullptr && chunk.first < last->first + last->rows) return false;
  if (last != nullptr && last->producer == chunk.producer &&
      chunk.first == last->first + last->rows &&
      chunk.place == last->place + last->rows && chunk.place % ring != 0) {
    last->rows += chunk.rows;
  } else {
    chunks_.push_back(chunk);
    ++producer.chunks;
  }
  end_ = std::max(end_, chunk.first + chunk.rows);
  return true;
}

std::vector<uint32_t> StreamLedger::Leave(uint32_t number, bool finished) {
  const auto found = producers_.find(number);
  if (found == producers_.end() || !found->second.at_work) return {};
  found->second.at_work = false;
  --at_work_;
  if (finished) {
    ++finished_;
    finished_tokens_.push_back(found->second.token);
    if (finished_tokens_.size() > kFinishedKept) finished_tokens_.pop_front();
  }
  if (found->second.chunks > 0) return {};
  producers_.erase(found);
  return {number};
}

std::vector<uint32_t> StreamLedger::Release(uint64_t row) {
  std::vector<uint32_t> gone;
  while (!chunks_.empty() && chunks_.front().first < row) {
    Chunk& chunk = chunks_.front();
    const uint64_t rows = std::min(chunk.rows, row - chunk.first);
    chunk.first += rows;
    chunk.place += rows;
    chunk.rows -= rows;
    const auto producer = producers_.find(chunk.producer);
    producer->second.freed = chunk.place;
    if (chunk.rows > 0) break;
    chunks_.pop_front();
    if (--producer->second.chunks > 0 || producer->second.at_work) continue;
    gone.push_back(producer->first);
    producers_.erase(producer);
  }
  return gone;
}

void StreamLedger::OpenRetained(uint64_t rows) {
  Producer& retained = producers_[kRetained];
  retained.ring_rows = rows;
  retained.at_work = false;
}

std::vector<uint32_t> StreamLedger::Move(uint64_t row,
                                         const std::vector<Chunk>& kept) {
  if (!kept.empty() && producers_.count(kRetained) == 0) return {};
  std::deque<Chunk> left;
  auto next = kept.begin();
  for (Chunk chunk : chunks_) {
    if (chunk.first < row) {
      const uint64_t rows = std::min(chunk.rows, row - chunk.first);
      const uint64_t end = chunk.first + rows;
      // Runs no longer there were released since.
      while (next != kept.end() && next->first + next->rows <= chunk.first) {
        ++next;
      }
      for (auto run = next; run != kept.end() && run->first < end; ++run) {
        const uint64_t first = std::max(run->first, chunk.first);
        Chunk part = chunk.producer == kRetained ? chunk : *run;
        part.place += first - part.first;
        part.first = first;
        part.rows = std::min(run->first + run->rows, end) - first;
        part.producer = kRetained;
        left.push_back(part);
      }
      chunk.first += rows;
      chunk.place += rows;
      chunk.rows -= rows;
    }
    if (chunk.rows > 0) left.push_back(chunk);
  }
  chunks_ = std::move(left);
  std::map<uint32_t, uint64_t> first_position;
  for (auto& [number, producer] : producers_) producer.chunks = 0;
  for (const Chunk& chunk : chunks_) {
    ++producers_.at(chunk.producer).chunks;
    first_position.emplace(chunk.producer, chunk.place);
  }
  std::vector<uint32_t> gone;
  for (auto it = producers_.begin(); it != producers_.end();) {
    auto& [number, producer] = *it;
    const auto first = first_position.find(number);
    if (number != kRetained) {
      producer.freed =
          first == first_position.end() ? producer.end : first->second;
    }
    if (producer.chunks > 0 || producer.at_work) {
      ++it;
      continue;
    }
    gone.push_back(number);
    it = producers_.erase(it);
  }
  return gone;
}

bool StreamLedger::HasFinished(uint64_t token) const {
  return token != 0 &&
         std::find(finished_tokens_.begin(), finished_tokens_.end(), token) !=
             finished_tokens_.end();
}

json StreamLedger::ToJson() const {
  json producers = json::array();
  for (const auto& [number, producer] : producers_) {
    producers.push_back({number, producer.token, producer.ring_rows,
                         producer.put_rows, producer.end, producer.freed,
                         producer.at_work, producer.rows});
  }
  return {{"end", end_},
          {"next_producer", next_producer_},
          {"finished", finished_},
          {"to_finish", to_finish_},
          {"finished_tokens", finished_tokens_},
          {"producers", std::move(producers)}};
}

StreamLedger StreamLedger::FromJson(const json& json) {
  StreamLedger ledger(json.at("end").get<uint64_t>(),
                      json.at("to_finish").get<uint64_t>());
  ledger.next_producer_ = json.at("next_producer").get<uint32_t>();
  ledger.finished_ = json.at("finished").get<uint64_t>();
  for (const auto& token : json.at("finished_tokens")) {
    ledger.finished_tokens_.push_back(token.get<uint64_t>());
  }
  for (const auto& each : json.at("producers")) {
    Producer& producer = ledger.producers_[each.at(0).get<uint32_t>()];
    producer.token = each.at(1).get<uint64_t>();
    producer.ring_rows = std::max<uint64_t>(each.at(2).get<uint64_t>(), 1);
    producer.put_rows = each.at(3).get<uint64_t>();
    producer.end = each.at(4).get<uint64_t>();
    producer.freed = each.at(5).get<uint64_t>();
    producer.at_work = each.at(6).get<bool>();
    // Older versions did not count them.
    if (each.size() > 7) producer.rows = each.at(7).get<uint64_t>();
    if (producer.at_work) ++ledger.at_work_;
  }
  return ledger;
}

}  // namespace penstock
