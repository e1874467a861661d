-- ff1_due: entries of views whose time has come. What they stand for is read by a later call, as it is then.
-- request: @list_view; in a cluster the tags are those of one node's partitions that hints name, otherwise hints are
--   asked here
-- answers: {hinted tags, places as `list` answers them}. Hints and the timers of config are asked for where they
--   lie: in a cluster a call that is about them has no tags

-- Its number follows those of the views that are asked for.
local CONFIG_TIMERS = $config_key.config_timers

-- Partitions that may have something due; hints that were too early are put right.
local function due_tags(c)
  local hinted, found = call('ZRANGE', ff.timer_hints(), '-inf', c.now, 'BYSCORE'), {}
  if c.cluster then return hinted end
  for i = 1, #hinted do
    local tag = hinted[i]
    local first = ff.first_timer(tag)
    if not first then
      call('ZREM', ff.timer_hints(), tag)
    elseif first > c.now then
      call('ZADD', ff.timer_hints(), first, tag)
    else
      found[#found + 1] = tag
    end
  end
  return found
end

ff.register('due', function(_, args)
  local c = ff.open(args)
  local request, tags = c.request, c.request[@list_view.tags]
  local hinted = #tags == 0 and due_tags(c) or {}
  local open = ff.open_views(c, request, c.cluster and tags or hinted)
  if #tags == 0 then
    local number = #request[@list_view.views] + 1
    ff.open_view(open, request, { key = CONFIG_TIMERS, number = number, least = 0, bound = c.now + 1 })
  end
  for i = 1, #tags do ff.correct_timer(c, tags[i]) end
  return ff.close(c, { hinted, ff.show_views(open, request) })
end, { 'allow-cross-slot-keys' })
