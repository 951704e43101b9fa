// A source whose records come from files also says when these were last
// changed: what is kept of them for later is of no use afterwards
// (broker/cache/).
#ifndef BROKER_INDEX_FILE_TIMES_H_
#define BROKER_INDEX_FILE_TIMES_H_

namespace penstock {

class Fingerprint;

class FileTimes {
 public:
  virtual ~FileTimes() = default;
  // Adds when its files, or their folders, were last changed before they were
  // opened.
  virtual void AddTimes(Fingerprint* to) const = 0;
};

// The same of a source, if it has files.
template <typename Source>
void AddTimesOf(const Source& source, Fingerprint* to) {
  if (const auto* files = dynamic_cast<const FileTimes*>(&source)) {
    files->AddTimes(to);
  }
}

}  // namespace penstock
#endif  // BROKER_INDEX_FILE_TIMES_H_
