// What every report page carries: its style and the small script that shows values under the
// pointer. Nothing is fetched from anywhere.
#pragma once

namespace aerie::ui {

extern const char kReportStyle[];   // <style> ... </style>
extern const char kReportScript[];  // <script> ... </script>

}  // namespace aerie::ui
