/* What the function of hostile_plugin.c attempts, by its number. */
#ifndef TESTS_SUPPORT_HOSTILE_ATTEMPTS_H_
#define TESTS_SUPPORT_HOSTILE_ATTEMPTS_H_

/* Where it finds the test's folder, which has a file "victim" and a listening
 * socket "listens", also of that abstract name, and the port on loopback at
 * which the test listens. */
#define HOSTILE_FOLDER "PENSTOCK_TEST_HOSTILE_FOLDER"
#define HOSTILE_PORT "PENSTOCK_TEST_HOSTILE_PORT"

#define HOSTILE_ATTEMPTS(each)                                            \
  each(tcp_socket) each(udp_socket) each(connect_by_io_uring)             \
  each(socket_by_io_uring) each(connect_to_a_unix_socket)                 \
  each(connect_to_an_abstract_socket) each(signal_a_process)              \
  each(limit_a_process) each(shared_code)                                 \
  each(start_a_program) each(replace_this_program) each(make_a_file)      \
  each(make_a_file_by_io_uring) each(make_a_folder) each(overwrite_a_file) \
  each(truncate_a_file) each(rename_a_file) each(link_a_file)             \
  each(change_a_mode) each(write_to_proc) each(remove_a_file)             \
  each(write_code) each(make_data_code) each(trace_a_process)             \
  each(read_a_process) each(a_user_namespace)

#endif /* TESTS_SUPPORT_HOSTILE_ATTEMPTS_H_ */
