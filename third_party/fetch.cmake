# Downloads one header-only dependency, for POLYGRAD_FETCH=ON. A git commit is version and hash in one.
include(FetchContent)

set(polygrad_fetch_FMT https://github.com/fmtlib/fmt a33701196adfad74917046096bf5a2aa0ab0bb50 include)        # 9.1.0
set(polygrad_fetch_EIGEN https://gitlab.com/libeigen/eigen 3147391d946bb4b6c68edd901f2add6ac1f31f8c .)        # 3.4.0
set(polygrad_fetch_JSON https://github.com/nlohmann/json bc889afb4c5bf1c0d8ee29ef35eaaf4c8bef8a5d include)      # 3.11.2
set(polygrad_fetch_STB https://github.com/nothings/stb 8b5f1f37b5b75829fc72d38e7b5d4bcbf8a26d55 .)            # 2022-09
set(polygrad_fetch_CLI11 https://github.com/CLIUtils/CLI11 70f8072f9dd2292fd0b9f9e5f58e279f60483ed3 include)  # 2.1.2
set(polygrad_fetch_DOCTEST https://github.com/doctest/doctest b7c21ec5ceeadb4951b00396fc1e4642dd347e5f .)     # 2.4.9

# polygrad_fetch(NAME): sets POLYGRAD_<NAME>_INCLUDE_DIR in the cache. The library's own CMake files are not read.
function(polygrad_fetch name)
  list(GET polygrad_fetch_${name} 0 repository)
  list(GET polygrad_fetch_${name} 1 commit)
  list(GET polygrad_fetch_${name} 2 folder)
  string(TOLOWER polygrad_${name} content)
  FetchContent_Declare(${content} GIT_REPOSITORY ${repository} GIT_TAG ${commit} SOURCE_SUBDIR no_cmake_files_here)
  FetchContent_MakeAvailable(${content})
  set(POLYGRAD_${name}_INCLUDE_DIR ${${content}_SOURCE_DIR}/${folder} CACHE PATH "" FORCE)
endfunction()
