// Classes of two datasets that are used together, such as those of `train` and
// `val`. A label is the place of its class in the list, so a class that one of
// them lacks shifts the labels of all that follow it, and nothing fails.
#ifndef COMMON_CLASS_NAMES_H_
#define COMMON_CLASS_NAMES_H_

#include <string>
#include <vector>

namespace penstock {

struct ClassNames {
  std::string folder;              // whose sub-folders they are
  std::vector<std::string> names;  // by label; each once
};

// What to tell the user: the first class with another label in the other
// dataset, the label it has in each, and the first class that only one of them
// has. "" where labels agree, and of datasets that have nothing to do with each
// other: less than half of the classes of the smaller one are in the other.
std::string LabelsThatDiffer(const ClassNames& a, const ClassNames& b);

}  // namespace penstock
#endif  // COMMON_CLASS_NAMES_H_
