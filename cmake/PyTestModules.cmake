# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

#[[
py_test_modules(<name> MODULES <module> [ENVS <key>=<value> ...])

Adds the test <name>, which runs the unittest module <module>.py of the
current source directory under Python3_EXECUTABLE. PADDLE_PYTHON goes first in
its PYTHONPATH; a PYTHONPATH among ENVS comes behind it. PY_TEST_ENVS are more
<key>=<value>, for every test. The working directory is the current binary
directory. A module of which no test ran fails; one whose tests were all skipped
counts as skipped. The time limit is PY_TEST_TIMEOUT_SECONDS until
set_tests_properties(<name> PROPERTIES TIMEOUT <seconds>) sets another.
]]

# Ten times what the slowest ordinary module takes on a busy 2-core machine.
set(PY_TEST_TIMEOUT_SECONDS 120)
if(PY_TEST_ENVS MATCHES "LD_PRELOAD=")
  # A sanitizer triples it.
  set(PY_TEST_TIMEOUT_SECONDS 360)
endif()

# SKIPPED in run_py_test.py.
set(PY_TEST_SKIPPED 77)

if(WIN32)
  # An escaped list separator, or CMake would split the value.
  set(PY_TEST_PATH_SEPARATOR "\\;")
else()
  set(PY_TEST_PATH_SEPARATOR ":")
endif()

function(py_test_modules name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "MODULES;ENVS")
  if(NOT arg_MODULES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "py_test_modules(${name}): expected MODULES and ENVS, "
                        "but received: ${ARGN}")
  endif()
  set(python_path "${PADDLE_PYTHON}")
  set(environment "")
  foreach(entry IN LISTS arg_ENVS)
    if(entry MATCHES "^PYTHONPATH=(.*)$")
      string(APPEND python_path "${PY_TEST_PATH_SEPARATOR}${CMAKE_MATCH_1}")
    else()
      list(APPEND environment "${entry}")
    endif()
  endforeach()
  add_test(
    NAME ${name}
    COMMAND
      "${CMAKE_COMMAND}" -E env "PYTHONPATH=${python_path}" ${environment}
      ${PY_TEST_ENVS}
      "${Python3_EXECUTABLE}" -X faulthandler
      "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/run_py_test.py"
      "${CMAKE_CURRENT_SOURCE_DIR}" ${arg_MODULES}
    WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
  set_tests_properties(
    ${name} PROPERTIES TIMEOUT ${PY_TEST_TIMEOUT_SECONDS}
                       SKIP_RETURN_CODE ${PY_TEST_SKIPPED})
endfunction()

# Adds each test_*.py of the current source directory, under its own name. A
# new file is found by the next build or configuration.
function(py_test_folder)
  file(GLOB modules CONFIGURE_DEPENDS "test_*.py")
  foreach(path IN LISTS modules)
    get_filename_component(module "${path}" NAME_WE)
    py_test_modules(${module} MODULES ${module} ${ARGN})
  endforeach()
endfunction()
