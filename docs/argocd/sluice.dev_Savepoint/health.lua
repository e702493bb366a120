local hs = {status = "Progressing", message = "the controller has not seen it yet"}
local status = obj.status
if status == nil or status.phase == nil then
  return hs
end
hs.message = status.message or status.phase
if status.phase == "Completed" then
  hs.status = "Healthy"
elseif status.phase == "Failed" or status.phase == "Abandoned" then
  hs.status = "Degraded"
end
return hs
