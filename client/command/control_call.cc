#include "client/command/control_call.h"

#include <optional>

#include "client/command/interrupt.h"
#include "client/command/json_field.h"
#include "client/command/progress_bar.h"
#include "common/message.h"

namespace penstock {

StatusOr<nlohmann::json> CallBroker(const std::string& socket_path,
                                    const nlohmann::json& request) {
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  PENSTOCK_ASSIGN_OR_RETURN(const Fd socket, ConnectControl(socket_path));
  std::optional<ProgressBar> bar;
  std::string stage;
  const auto on_event = [&](const nlohmann::json& event) {
    if (InterruptSignal() != 0) return false;
    if (TextField(event, "event") != "progress") return true;
    if (const std::string next = TextField(event, "stage"); next != stage) {
      stage = next;
      bar.emplace(stage, "");
    }
    if (bar) {
      bar->Update(CountField(event, "done").value_or(0),
                  CountField(event, "total").value_or(0));
    }
    return true;
  };
  const InterruptEndsSocket ends(socket.get());
  StatusOr<Message> answer =
      Request(socket.get(), request, {}, std::nullopt, on_event);
  bar.reset();
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  if (!answer.ok()) return answer.status();
  return std::move(answer->json);
}

}  // namespace penstock
