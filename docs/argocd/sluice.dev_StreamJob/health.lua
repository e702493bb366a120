local hs = {status = "Progressing", message = "the controller has not seen it yet"}
local status = obj.status
if status == nil or status.state == nil then
  return hs
end
if status.observedGeneration ~= obj.metadata.generation then
  hs.message = "the controller has not acted on the changed spec yet"
  return hs
end
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end
local function is(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end
hs.message = status.state
if status.message ~= nil and status.message ~= "" then
  hs.message = status.state .. ": " .. status.message
end
if status.state == "Failed" or status.state == "Invalid" then
  hs.status = "Degraded"
elseif status.state == "Suspended" or status.state == "Cancelled" then
  hs.status = "Suspended"
elseif status.state == "Finished" then
  hs.status = "Healthy"
elseif status.state == "Restarting" then
  -- It recovers by itself; when it cannot, it becomes Failed.
  hs.status = "Progressing"
elseif is("Degraded") then
  hs.status = "Degraded"
  hs.message = conditions.Degraded.reason .. ": " .. conditions.Degraded.message
elseif is("Ready") then
  hs.status = "Healthy"
end
return hs
