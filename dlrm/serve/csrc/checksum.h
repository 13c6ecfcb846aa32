// SPDX-License-Identifier: Apache-2.0
// Checksums of the files of a version, in the format of recsys/serve/manifest.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "json.h"

namespace recsys::serve {

// Returns the XXH64 of bytes in hex. Source: Collet, xxHash fast digest algorithm, version 0.1.1.
std::string checksum_of(std::string_view bytes);

// Throws std::runtime_error if the text of deployment.json, or a file that it lists, does not match
// its checksum.
void check_version(const std::string& folder, const std::string& text, const Json& deployment);

}  // namespace recsys::serve
