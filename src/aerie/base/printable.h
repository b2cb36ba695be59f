// Text from outside (paths, manifests) on its way to a terminal or a log. archive/text.h has the
// same for single names.
#pragma once

#include <string>
#include <string_view>

namespace aerie {

// Length of the valid UTF-8 sequence at the start of `text`, 0 when there is none. Strict: no
// overlong forms, no surrogates, nothing beyond U+10FFFF.
size_t utf8_length(std::string_view text);

// Control characters, those of Unicode's second block included, and bytes that are not UTF-8 become
// \xNN: no file name can colour a terminal, move its cursor or set its title. Newlines stay and the
// lines after the first are indented by two spaces, so that none can pass for a line of its own;
// tabs stay.
std::string printable_lines(std::string_view text);

}  // namespace aerie
