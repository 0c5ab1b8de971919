-- Marks nothing and refuses nothing: only keeps jobs that need more than one node off virtual nodes.
function slurm_job_submit(job, partitions, uid)
    local nodes = job.min_nodes
    if job.partition == "htc" and nodes ~= slurm.NO_VAL and nodes > 1 then
        slurm.log_user("the partition htc runs jobs of one node; this one asks for " .. nodes)
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS
