// Declarations told to people, as text in lines of a terminal's width.
#ifndef BROKER_DECLARE_DESCRIBE_H_
#define BROKER_DECLARE_DESCRIBE_H_

#include <cstddef>
#include <string>

#include "broker/base/messages.h"
#include "broker/declare/declaration.h"

namespace penstock {

// text in lines of at most `columns` characters; first before the first line,
// others before all others.
std::string Wrapped(const std::string& text, const std::string& first,
                    const std::string& others, size_t columns = 80);

// "a number from 1 to 4096, or auto; default auto".
std::string ValueOf(const DeclarationBase& declared,
                    const DeclarationBase::Field& field);

// All messages of the daemon's log: `penstock help messages`.
std::string DescribeMessages();
// The same for `journalctl --update-catalog`.
std::string MessageCatalog();
// "job 'JOB': rank RANK died".
std::string TextOf(const LogMessage& message);

// Two lines or more: the key, its value and its meaning.
std::string KeyOf(const DeclarationBase& declared,
                  const DeclarationBase::Field& field);
// The same for all keys.
std::string KeysOf(const DeclarationBase& declared);
// All keys as a list in Markdown.
inline constexpr size_t kPageColumns = 100;
std::string KeyListOf(const DeclarationBase& declared);

}  // namespace penstock
#endif  // BROKER_DECLARE_DESCRIBE_H_
