// Compares the classes of two datasets that are used together, such as `train`
// and `val`. A label is the index of its class in the list. A class missing
// from one dataset therefore shifts all labels after it, and nothing fails.
#ifndef COMMON_CLASS_NAMES_H_
#define COMMON_CLASS_NAMES_H_

#include <string>
#include <vector>

namespace penstock {

struct ClassNames {
  std::string folder;  // whose sub-folders are the classes, or the list
  std::vector<std::string> names;  // indexed by label, no duplicates
};

// Returns a message for the user: the first class whose label differs, both
// labels, and the first class that only one dataset has. Returns "" when the
// labels agree, and for unrelated datasets: less than half of the classes of
// the smaller one are in the other.
std::string LabelsThatDiffer(const ClassNames& a, const ClassNames& b);

}  // namespace penstock
#endif  // COMMON_CLASS_NAMES_H_
