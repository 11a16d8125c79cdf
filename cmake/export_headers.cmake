# Writes the public headers as applications see them: include/polygrad/<folder>/x.h, where `#include "engine/x.h"` has become
# `#include <polygrad/engine/x.h>`, and the umbrella polygrad.h. Files that did not change keep their time.
#
#   cmake -DSOURCE=<tree> -DDESTINATION=<include folder> -DCOMPONENTS="engine ops" -P export_headers.cmake
#
# A header is internal, and stays here, where its first lines say "Internal: not installed".
cmake_minimum_required(VERSION 3.20)
separate_arguments(COMPONENTS)

# The headers of a component, relative to the tree.
function(component_headers component variable)
  if(component STREQUAL "models")
    file(GLOB_RECURSE headers RELATIVE ${SOURCE} ${SOURCE}/models/*.h)
  elseif(component STREQUAL "training")
    file(GLOB headers RELATIVE ${SOURCE} ${SOURCE}/apps/training/*.h)
  else()
    file(GLOB headers RELATIVE ${SOURCE} ${SOURCE}/${component}/*.h)
  endif()
  set(public "")
  foreach(header IN LISTS headers)
    file(READ ${SOURCE}/${header} head LIMIT 1000)
    if(NOT head MATCHES "Internal: not installed")
      list(APPEND public ${header})
    endif()
  endforeach()
  set(${variable} ${public} PARENT_SCOPE)
endfunction()

function(write_if_different file text)
  set(old "")
  if(EXISTS ${file})
    file(READ ${file} old)
  endif()
  if(NOT old STREQUAL text)
    file(WRITE ${file} "${text}")
  endif()
endfunction()

set(public "")
foreach(component IN LISTS COMPONENTS)
  component_headers(${component} headers)
  list(APPEND public ${headers})
endforeach()

set(umbrella "// All of polygrad that this installation has.\n#pragma once\n\n")
set(written polygrad.h)
foreach(header IN LISTS public)
  file(READ ${SOURCE}/${header} text)
  # A public header that needs an internal one could not be compiled by an application.
  string(REGEX MATCHALL "#include \"[^\"]+\"" used "${text}")
  foreach(include IN LISTS used)
    string(REGEX REPLACE "#include \"([^\"]+)\"" "\\1" include "${include}")
    if(NOT include IN_LIST public)
      message(FATAL_ERROR "polygrad: the public header ${header} includes ${include}, which is internal, or not of the "
                          "components '${COMPONENTS}'")
    endif()
  endforeach()
  string(REGEX REPLACE "#include \"apps/([^\"]+)\"" "#include <polygrad/\\1>" text "${text}")
  string(REGEX REPLACE "#include \"([^\"]+)\"" "#include <polygrad/\\1>" text "${text}")
  string(REGEX REPLACE "^apps/" "" target ${header})
  write_if_different(${DESTINATION}/polygrad/${target} "${text}")
  list(APPEND written ${target})
  if(NOT header STREQUAL "engine/testing.h")
    string(APPEND umbrella "#include <polygrad/${target}>\n")
  endif()
endforeach()
write_if_different(${DESTINATION}/polygrad/polygrad.h "${umbrella}")

# What an earlier run left of headers that are gone.
file(GLOB_RECURSE present RELATIVE ${DESTINATION}/polygrad ${DESTINATION}/polygrad/*.h)
foreach(header IN LISTS present)
  if(NOT header IN_LIST written)
    file(REMOVE ${DESTINATION}/polygrad/${header})
  endif()
endforeach()
