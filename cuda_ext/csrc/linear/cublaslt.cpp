// SPDX-License-Identifier: Apache-2.0
#include "cublaslt.h"

#if defined(RECSYS_CUDA)
#include <dlfcn.h>

#include <initializer_list>

namespace recsys::cublaslt {
namespace {

void* open_library() {
  const char* const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
  for (const int mode : {RTLD_NOLOAD, 0}) {  // torch's own before another
    for (const char* name : names) {
      if (void* library = dlopen(name, RTLD_LAZY | mode)) return library;
    }
  }
  return nullptr;
}

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

const Functions* load() {
  void* const library = open_library();
  static Functions loaded{};
  const bool complete =
      library != nullptr && find(library, "cublasLtCreate", loaded.create) &&
      find(library, "cublasLtMatmulDescCreate", loaded.create_description) &&
      find(library, "cublasLtMatmulDescDestroy", loaded.destroy_description) &&
      find(library, "cublasLtMatmulDescSetAttribute", loaded.set_attribute) &&
      find(library, "cublasLtMatrixLayoutCreate", loaded.create_layout) &&
      find(library, "cublasLtMatrixLayoutDestroy", loaded.destroy_layout) &&
      find(library, "cublasLtMatmulPreferenceCreate", loaded.create_preference) &&
      find(library, "cublasLtMatmulPreferenceDestroy", loaded.destroy_preference) &&
      find(library, "cublasLtMatmulPreferenceSetAttribute", loaded.set_preference) &&
      find(library, "cublasLtMatmulAlgoGetHeuristic", loaded.find_algorithm) &&
      find(library, "cublasLtMatmul", loaded.multiply);
  return complete ? &loaded : nullptr;
}

}  // namespace

const Functions* functions() {
  static const Functions* const loaded = load();
  return loaded;
}

}  // namespace recsys::cublaslt
#else
const recsys::cublaslt::Functions* recsys::cublaslt::functions() { return nullptr; }
#endif
