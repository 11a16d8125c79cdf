# What an application sees: polygrad::polygrad, the exported headers, and the installed CMake package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(polygrad_libraries "")
foreach(component IN LISTS POLYGRAD_COMPONENTS)
  list(APPEND polygrad_libraries polygrad_${component})
endforeach()

# polygrad::polygrad: all the libraries of this build together.
add_library(polygrad_all INTERFACE)
add_library(polygrad::polygrad ALIAS polygrad_all)
set_target_properties(polygrad_all PROPERTIES EXPORT_NAME polygrad)
target_link_libraries(polygrad_all INTERFACE ${polygrad_libraries})

# The headers, for consumers of the build tree (add_subdirectory) and of an installation alike. They are written while
# building, before anything that links one of our libraries is compiled.
set(polygrad_header_folders "")
foreach(component IN LISTS POLYGRAD_COMPONENTS)
  if(component STREQUAL "training")
    list(APPEND polygrad_header_folders ${PROJECT_SOURCE_DIR}/apps/training/*.h)
  else()
    list(APPEND polygrad_header_folders ${PROJECT_SOURCE_DIR}/${component}/*.h)
  endif()
endforeach()
file(GLOB_RECURSE polygrad_headers CONFIGURE_DEPENDS ${polygrad_header_folders})
set(polygrad_headers_stamp ${PROJECT_BINARY_DIR}/include/.headers)
string(REPLACE ";" " " polygrad_component_words "${POLYGRAD_COMPONENTS}")
add_custom_command(
  OUTPUT ${polygrad_headers_stamp}
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DDESTINATION=${PROJECT_BINARY_DIR}/include
          "-DCOMPONENTS=${polygrad_component_words}" -P ${PROJECT_SOURCE_DIR}/cmake/export_headers.cmake
  COMMAND ${CMAKE_COMMAND} -E touch ${polygrad_headers_stamp}
  DEPENDS ${polygrad_headers} ${PROJECT_SOURCE_DIR}/cmake/export_headers.cmake
  COMMENT "Exporting the public headers"
  VERBATIM)
add_custom_target(polygrad_headers DEPENDS ${polygrad_headers_stamp})
foreach(library IN LISTS polygrad_libraries)
  add_dependencies(${library} polygrad_headers)
endforeach()
add_custom_target(polygrad_libraries DEPENDS ${polygrad_libraries} polygrad_headers)

# --- installation: no path of this machine gets in, so that a prefix can be moved -------------------------------------
set(polygrad_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/polygrad)
install(TARGETS ${polygrad_libraries} polygrad_all EXPORT polygradTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT polygrad
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT polygrad)
install(EXPORT polygradTargets NAMESPACE polygrad:: DESTINATION ${polygrad_package_dir} COMPONENT polygrad)
install(DIRECTORY ${PROJECT_BINARY_DIR}/include/polygrad DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT polygrad
        FILES_MATCHING PATTERN *.h)

# What a static library of ours asks of the final link, by name.
set(polygrad_system_libraries "")
if(POLYGRAD_HAVE_ONEDNN AND NOT BUILD_SHARED_LIBS)
  list(APPEND polygrad_system_libraries dnnl gomp)
endif()
if(POLYGRAD_HAVE_TURBOJPEG AND NOT BUILD_SHARED_LIBS)
  list(APPEND polygrad_system_libraries turbojpeg)
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/polygradConfig.cmake.in ${PROJECT_BINARY_DIR}/polygradConfig.cmake
                              INSTALL_DESTINATION ${polygrad_package_dir}
                              NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/polygradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/polygradConfig.cmake ${PROJECT_BINARY_DIR}/polygradConfigVersion.cmake
        DESTINATION ${polygrad_package_dir} COMPONENT polygrad)
