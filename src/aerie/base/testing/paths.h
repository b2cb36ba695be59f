// Where tests find their files. The folders of the checkout are in one generated source
// (cmake/test_paths.cc.in), so that no other object depends on where the checkout lies and a second
// clone finds its objects in the compiler's cache. AERIE_TEST_DATA, AERIE_CONFIG_DIR and
// AERIE_BINARY in the environment replace them, for machines that did not build the tests.
#pragma once

#include <string>
#include <string_view>

namespace aerie {

// `below` is appended as it is: test_data("/tar/plain.tar").
std::string test_data(std::string_view below = {});
std::string config_dir(std::string_view below = {});
// The aerie executable of this build.
std::string aerie_binary();

}  // namespace aerie
