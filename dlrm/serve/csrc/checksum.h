// SPDX-License-Identifier: Apache-2.0
// Checksums of the files of a version, as recsys/serve/manifest.py writes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "json.h"

namespace recsys::serve {

// Returns the XXH64 of bytes in hex. Source: Collet, xxHash fast digest algorithm, version 0.1.1.
std::string checksum_of(std::string_view bytes);

// Throws std::runtime_error where the text of deployment.json, or a file that it lists, differs
// from its checksum.
void check_version(const std::string& folder, const std::string& text, const Json& deployment);

}  // namespace recsys::serve
