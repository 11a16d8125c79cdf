// The one translation unit that compiles {fmt}'s implementation, so that every other one includes only fmt/core.h.
//
// {fmt}'s headers declare these templates and leave their definitions to a compiled library; the explicit
// instantiations below are that library, in our renamed namespace (see format.h).
#include "engine/format.h"

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template FMT_API auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;

template FMT_API void buffer<char>::append(const char*, const char*);
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;
#if FMT_VERSION < 110000  // an ordinary function since {fmt} 11
template FMT_API void vformat_to(buffer<char>&, string_view, basic_format_args<buffer_context<char>>, locale_ref);
#endif

}  // namespace detail
FMT_END_NAMESPACE
