#include "broker/arguments.h"

#include <CLI/CLI.hpp>

#include "broker/workers/worker_pool.h"
#include "common/quantity.h"

namespace penstock {

void DeclareArguments(CLI::App* app, Arguments* arguments) {
  app->description(
      "The Penstock broker: reads datasets once and hands finished batches to "
      "the trainer ranks of this host through shared memory.\n"
      "Usually started by systemd or by `penstock run`.");
  app->set_version_flag("--version", "penstockd " PENSTOCK_VERSION);
  app->add_option("--config", arguments->config, "configuration file (YAML)")
      ->type_name("FILE");
  app->add_option("--socket", arguments->socket,
                  "where to listen (default: PENSTOCK_SOCKET, else "
                  "/run/penstock/penstock.sock)")
      ->type_name("PATH");
  app->add_option("--workers", arguments->workers,
                  "worker threads, or auto: one per processor")
      ->type_name("N")
      ->check([](const std::string& text) {
        return ParseCountOrAuto(text, kWorkersMax).status().message();
      });
  app->add_option("--memory-limit", arguments->memory_limit,
                  "memory of all batches together, such as 8G")
      ->type_name("SIZE")
      ->check([](const std::string& text) {
        return ParseBytes(text).status().message();
      });
  app->add_option("--state-dir", arguments->state_dir,
                  "folder for what must survive this process: registered "
                  "datasets, jobs and their progress")
      ->type_name("FOLDER");
  app->add_flag("--check", arguments->check,
                "check configuration and machine, then exit");
  app->add_option("--describe-spec", arguments->describe_spec,
                  "explain this key of a dataset spec, or all, and exit "
                  "(penstock help spec)")
      ->expected(0, 1)
      ->type_name("[NAME]");
  app->add_flag("--describe-config", arguments->describe_config,
                "explain the keys of the configuration, and exit (penstock "
                "help config)");
  app->add_flag("--describe-messages", arguments->describe_messages,
                "explain the messages of the log, and exit (penstock help "
                "messages)");
  app->add_flag("--json", arguments->json,
                "with --describe-spec: all of it, for programs");
  app->add_flag("--private", arguments->private_broker,
                "serve this user only, for one command (penstock run)");
  app->add_option("--without-message", arguments->without_message,
                  "with --private: leave this message out of the log, because "
                  "the command tells it (penstock check)")
      ->type_name("NAME");
  app->add_option("--replay", arguments->replay,
                  "make every row of this spec's plan serially, write its id "
                  "and CRC-32 to "
                  "standard output, and exit (for penstock bench --verify)")
      ->type_name("SPEC.yaml");
  app->add_option("--measure-reads", arguments->measure_reads,
                  "read records of this spec for some seconds, cold and then "
                  "from the page cache, write their rates to standard output, "
                  "and exit (for penstock explain)")
      ->type_name("SPEC.yaml");
  app->add_option("--seconds", arguments->seconds,
                  "with --measure-reads: for how long")
      ->type_name("N")
      ->check(CLI::Range(0.1, 3600.0).description(""));
  app->add_option("--world-size", arguments->replay_options.world_size,
                  "with --replay: number of ranks")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20).description(""));
  app->add_option("--epochs", arguments->replay_options.epochs,
                  "with --replay: stop after this many epochs")
      ->type_name("N")
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""));
  app->add_option("--steps", arguments->replay_options.steps,
                  "with --replay: stop after this many steps")
      ->type_name("N")
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""));
  app->add_option("--weights", arguments->replay_weights,
                  "with --replay: how the weights of its mix changed, as in a "
                  "state")
      ->type_name("JSON");
}

}  // namespace penstock
