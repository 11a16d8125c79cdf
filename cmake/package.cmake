# polygrad::polygrad, all the libraries of this build together.
add_library(polygrad_all INTERFACE)
add_library(polygrad::polygrad ALIAS polygrad_all)
set_target_properties(polygrad_all PROPERTIES EXPORT_NAME polygrad)
foreach(component IN LISTS POLYGRAD_COMPONENTS)
  target_link_libraries(polygrad_all INTERFACE polygrad_${component})
endforeach()
