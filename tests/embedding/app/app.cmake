# The application itself, for both ways of getting polygrad: at -O0, under AddressSanitizer, with libraries of its own.
find_package(OpenMP REQUIRED)
find_path(OWN_EIGEN Eigen/Dense PATH_SUFFIXES eigen3)
find_path(OWN_STB stb_image.h PATH_SUFFIXES stb)
find_path(OWN_JSON nlohmann/json.hpp)

add_executable(app ${CMAKE_CURRENT_LIST_DIR}/main.cpp ${CMAKE_CURRENT_LIST_DIR}/own_libraries.cpp)
target_include_directories(app SYSTEM PRIVATE ${OWN_EIGEN} ${OWN_STB} ${OWN_JSON})
target_compile_options(app PRIVATE -O0 -g1 -fsanitize=address)
target_link_options(app PRIVATE -fsanitize=address)
target_link_libraries(app PRIVATE ${APP_LIBRARIES} OpenMP::OpenMP_CXX)
