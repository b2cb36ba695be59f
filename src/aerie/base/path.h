// Paths as plain strings, POSIX style. Pure text: nothing here touches the disk, except
// expand_user, which reads the HOME variable.
#pragma once

#include <string>
#include <string_view>

namespace aerie {

// "a/b" + "c" = "a/b/c"; an absolute second part wins; an empty part adds nothing.
std::string join_path(std::string_view directory, std::string_view name);
// "a/b/c" -> "a/b"; "c" -> "."; "/c" -> "/".
std::string parent_path(std::string_view path);
// "a/b/c.tar" -> "c.tar"; "a/b/" -> "b".
std::string base_name(std::string_view path);
// "a/b/c.tar.gz" -> "c.tar": the base name without its last extension.
std::string file_stem(std::string_view path);
// "a/b/c.WAV" -> ".WAV"; "" when there is none (also for ".hidden").
std::string file_extension(std::string_view path);
bool is_absolute_path(std::string_view path);
// "~" and "~/x" become $HOME and $HOME/x; anything else (also "~user/x") is returned unchanged.
std::string expand_user(std::string_view path);

}  // namespace aerie
