# Run at every build: writes aerie/version.h with the current commit, touching the file only when something changed.
execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12 --exclude=* OUTPUT_VARIABLE COMMIT
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE rc)
if(NOT rc EQUAL 0)
  set(COMMIT "unknown")
endif()
configure_file("${SOURCE}/cmake/version.h.in" "${OUTPUT}" @ONLY)
