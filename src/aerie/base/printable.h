// Text from outside (paths, manifests, configurations, archives, what other libraries say) on its
// way to a terminal or a log. Commands escape at the printf that prints it; logs do it themselves
// (log.h), as does main() with the Status of a command.
#pragma once

#include <string>
#include <string_view>

namespace aerie {

// Length of the valid UTF-8 sequence at the start of `text`, 0 when there is none. Strict: no
// overlong forms, no surrogates, nothing beyond U+10FFFF.
size_t utf8_length(std::string_view text);

// Control characters, those of Unicode's second block included, and bytes that are not UTF-8 become
// \xNN: no file name can colour a terminal, move its cursor or set its title. For single names.
std::string printable(std::string_view text);

// The same for messages: newlines stay and the lines after the first are indented by two spaces, so
// that none can pass for a line of its own; tabs stay.
std::string printable_lines(std::string_view text);

// JSON text with the control characters that JSON lets stand in strings (DEL and Unicode's second
// block) as \u00NN: it means the same and no terminal obeys it.
std::string printable_json(std::string_view json);

}  // namespace aerie
