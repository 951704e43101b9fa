#include "broker/arguments.h"

#include "broker/workers/worker_pool.h"
#include "common/command_line.h"
#include "common/quantity.h"

namespace penstock {

void DeclareArguments(CommandLine& line, Arguments* arguments) {
  line.SetText(
      "The Penstock broker: reads datasets once and hands finished batches to "
      "the trainer ranks of this host through shared memory.\n"
      "Usually started by systemd or by `penstock run`.");
  line.SetVersion("penstockd " PENSTOCK_VERSION);
  line.AddOption("--config", &arguments->config, "configuration file (YAML)")
      .Type("FILE");
  line.AddOption("--socket", &arguments->socket,
                 "where to listen (default: PENSTOCK_SOCKET, else "
                 "/run/penstock/penstock.sock)")
      .Type("PATH");
  line.AddOption("--workers", &arguments->workers,
                 "worker threads, or auto: one per processor")
      .Type("N")
      .Check([](const std::string& text) {
        return ParseCountOrAuto(text, kWorkersMax).status().message();
      });
  line.AddOption("--memory-limit", &arguments->memory_limit,
                 "memory of all batches together, such as 8G")
      .Type("SIZE")
      .Check([](const std::string& text) {
        return ParseBytes(text).status().message();
      });
  line.AddOption("--state-dir", &arguments->state_dir,
                 "folder for what must survive this process: registered "
                 "datasets, jobs and their progress")
      .Type("FOLDER");
  line.AddFlag("--check", &arguments->check,
               "check configuration and machine, then exit");
  line.AddOption("--describe-spec", &arguments->describe_spec,
                 "explain this key of a dataset spec, or all, and exit "
                 "(penstock help spec)")
      .ValueIsOptional()
      .Type("[NAME]");
  line.AddFlag("--describe-config", &arguments->describe_config,
               "explain the keys of the configuration, and exit (penstock "
               "help config)");
  line.AddFlag("--describe-messages", &arguments->describe_messages,
               "explain the messages of the log, and exit (penstock help "
               "messages)");
  line.AddFlag("--json", &arguments->json,
               "with --describe-spec: all of it, for programs");
  line.AddFlag("--private", &arguments->private_broker,
               "serve this user only, for one command (penstock run)");
  line.AddOption("--without-message", &arguments->without_message,
                 "with --private: leave this message out of the log, because "
                 "the command tells it (penstock check)")
      .Type("NAME");
  line.AddOption("--replay", &arguments->replay,
                 "make every row of this spec's plan serially, write its id "
                 "and CRC-32 to "
                 "standard output, and exit (for penstock bench --verify)")
      .Type("SPEC.yaml");
  line.AddOption("--measure-reads", &arguments->measure_reads,
                 "read records of this spec for some seconds, cold and then "
                 "from the page cache, write their rates to standard output, "
                 "and exit (for penstock explain)")
      .Type("SPEC.yaml");
  line.AddOption("--write-indexes", &arguments->write_indexes,
                 "write the index of each file of this spec below --out, and "
                 "exit (for penstock index)")
      .Type("SPEC.yaml");
  line.AddOption("--out", &arguments->out,
                 "with --write-indexes: a folder, or the address of one")
      .Type("FOLDER");
  line.AddOption("--try-store", &arguments->try_store,
                 "read from this object store for some seconds, write what was "
                 "found to standard output, and exit (for penstock doctor)")
      .Type("ADDRESS");
  line.AddOption("--seconds", &arguments->seconds,
                 "with --measure-reads and --try-store: for how long")
      .Type("N")
      .InRange(0.1, 3600.0);
  line.AddOption("--world-size", &arguments->replay_options.world_size,
                 "with --replay: number of ranks")
      .Type("N")
      .InRange(1, 1 << 20);
  line.AddOption("--epochs", &arguments->replay_options.epochs,
                 "with --replay: stop after this many epochs")
      .Type("N")
      .InRange(uint64_t{0});
  line.AddOption("--steps", &arguments->replay_options.steps,
                 "with --replay: stop after this many steps")
      .Type("N")
      .InRange(uint64_t{0});
  line.AddOption("--weights", &arguments->replay_weights,
                 "with --replay: how the weights of its mix changed, as in a "
                 "state")
      .Type("JSON");
}

}  // namespace penstock
